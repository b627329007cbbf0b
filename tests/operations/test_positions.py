"""Which database is asked for the positions of a consumer."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.utils.connection import ConnectionDoesNotExist

from outbox import conf
from outbox.operations import positions

DECLARED = {"shop.record": "default", "shop.other": "nowhere"}


def set_latest(consumer, **given):
    return positions.set_positions(conf.current(), DECLARED, consumer, "orders", "latest", actor="me", **given)


def test_the_alias_of_the_consumer_is_asked(transactional_db):
    current = conf.current()
    assert positions.show(current, DECLARED, "shop.record") == []
    assert positions.show(current, DECLARED, "shop.other", database="default") == []
    for asked in (None, "shop.other", "shop.unknown"):
        with pytest.raises(ConnectionDoesNotExist, match="nowhere"):
            positions.show(current, DECLARED, asked)
    with pytest.raises(ConnectionDoesNotExist, match="nowhere"):
        set_latest("shop.other")


def test_a_name_that_nothing_has_is_refused(transactional_db):
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM outbox_position")  # of other tests
    for ask in (
        lambda: positions.show(conf.current(), DECLARED, "shop.recrod", database="default"),
        lambda: set_latest("shop.recrod"),
    ):
        with pytest.raises(
            positions.PositionRefused, match=r"called 'shop.recrod'. Known consumers: shop.other, shop.rec"
        ):
            ask()


NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("17", 17),
        ("2026-11-20T11:59:59Z", datetime(2026, 11, 20, 11, 59, 59, tzinfo=UTC)),
        ("2026-11-20T13:00+01:00", NOW),
        ("2026-07-01T12:00", datetime(2026, 7, 1, 12, tzinfo=BERLIN)),
        ("2026-07-01 12:00:00.5", datetime(2026, 7, 1, 12, 0, 0, 500_000, tzinfo=BERLIN)),
        ("2026-10-25T02:30+01:00", datetime(2026, 10, 25, 1, 30, tzinfo=UTC)),
    ],
)
def test_an_operator_writes_an_offset_or_a_time(settings, text, expected):
    settings.TIME_ZONE = "Europe/Berlin"
    assert positions.to_of(text, NOW) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("yesterday", "is not an offset, earliest, latest or an ISO time such as 2026-03-01T12:00"),
        ("-5", "is not an offset"),
        ("2026-11-20T12:00:01Z", r"is in the future: it is 2026-11-20 12:00:00\+00:00 now. Set --to latest"),
        ("2026-11-20T13:01", r"is in the future: it is 2026-11-20 13:00:00\+01:00 now"),
        (
            "2026-10-25T02:30",
            r"exists twice, .* in the time zone Europe/Berlin. .*25T02:30:00\+02:00 or 2026-10-25T02:30:00\+01:00",
        ),
        ("2026-03-29T02:30", "does not exist, because the clocks skip it, in the time zone Europe/Berlin"),
    ],
)
def test_a_time_that_is_in_the_future_or_not_exactly_one_is_refused(settings, text, said):
    settings.TIME_ZONE = "Europe/Berlin"
    with pytest.raises(positions.PositionRefused, match=said):
        positions.to_of(text, NOW)
