"""stash() into another database than the default, with each of Django's two ways to bind parameters."""

import pytest
from django.db import connections, transaction

import outbox
from outbox import Message
from outbox.devstack.pump import Pump, PumpPlan
from outbox.exceptions import StashOutsideTransaction
from outbox.models import OutboxRecord
from tests.support.databases import fresh_database

AWKWARD = "back\\slash, 'quotes\", Zoë, {a,NULL}, %s"


@pytest.fixture(params=[False, True], ids=["client binding", "server binding"])
def second(request, django_db_setup, django_db_blocker, migrated_template):
    """The alias of a database of its own, with each of Django's two ways to bind parameters."""
    default = connections["default"].settings_dict
    url = "postgresql://{USER}:{PASSWORD}@{HOST}:{PORT}/{NAME}".format(**default)
    with fresh_database(url, migrated_template) as fresh:
        options = {**default["OPTIONS"], "server_side_binding": request.param}
        connections.settings["second"] = {**default, "NAME": fresh.rpartition("/")[2], "OPTIONS": options}
        with django_db_blocker.unblock():
            yield "second"
        connections["second"].close()
        del connections["second"]
        del connections.settings["second"]


class ToSecond:
    def db_for_write(self, model, **hints):
        return "second"


def values(using):
    return list(OutboxRecord.objects.using(using).order_by("id").values_list("kafka_value", flat=True))


def test_using_writes_to_that_database_in_its_transaction(second, settings):
    with pytest.raises(StashOutsideTransaction, match="'second'"):
        outbox.stash("heroes", using=second)
    with transaction.atomic(using=second):
        outbox.stash("heroes", "rolled back", using=second)
        transaction.set_rollback(True, using=second)
    assert values(second) == []
    with transaction.atomic(using=second):
        outbox.stash("heroes", "kept", using=second)
    assert values(second) == ["kept"]
    assert "kept" not in values("default")


def test_a_router_may_name_the_database(second, settings):
    settings.DATABASE_ROUTERS = [f"{__name__}.ToSecond"]
    with transaction.atomic(using=second):
        outbox.stash("heroes", "routed")
        outbox.stash_many([Message("heroes", "routed")] * 2)
    assert values(second) == ["routed"] * 3


def test_the_pump_follows_the_router(second, settings):
    settings.DATABASE_ROUTERS = [f"{__name__}.ToSecond"]
    for using, total in ((None, 40), (second, 80)):
        pump = Pump(PumpPlan(keys=2, records=40, rollback_share=0.5, using=using))
        pump.start()
        assert pump.wait(60)
        assert OutboxRecord.objects.using(second).count() == total


def test_every_statement_works_however_parameters_are_bound(second):
    with transaction.atomic(using=second):
        ids = [
            outbox.stash("heroes", AWKWARD, key=AWKWARD, headers={AWKWARD: AWKWARD}, using=second),
            outbox.stash("heroes", b"\0\xff", key="k", using=second, ordered=True),
            *outbox.stash_many([Message("heroes", b"\0\xff"), Message("heroes", AWKWARD)], using=second),
            *outbox.stash_many([Message("heroes", AWKWARD, key="k")] * 1_001, using=second, ordered=True),
        ]
    records = list(OutboxRecord.objects.using(second).order_by("id"))
    assert [record.id for record in records] == ids
    assert records[0].kafka_key == records[0].kafka_header_keys[0] == records[0].kafka_header_values[0] == AWKWARD
    assert [bytes(record.kafka_value_binary) for record in records[1:3]] == [b"\0\xff"] * 2
    assert {record.kafka_value for record in records if record.kafka_value_binary is None} == {AWKWARD}
