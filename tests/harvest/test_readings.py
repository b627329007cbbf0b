"""What a lane logs about outages."""

import time

import pytest

from outbox.harvest.readings import Troubles


def test_a_part_that_fails_beside_one_that_works_is_told_once(caplog):
    caplog.set_level("INFO", "outbox.harvest")
    troubles = Troubles(0)
    for _ in range(20):
        troubles.seen("kafka", "partition 1 has no leader")
        troubles.over("kafka", quiet_s=0.2)
    assert [record.getMessage().split()[0] for record in caplog.records] == ["kafka_failed"]
    time.sleep(0.2)
    for _ in range(2):
        troubles.over("kafka", quiet_s=0.2)
    assert [record.getMessage().split()[0] for record in caplog.records] == ["kafka_failed", "kafka_works_again"]


@pytest.mark.parametrize("times", [1, 2])
def test_the_end_of_an_outage_is_told_at_once_where_all_or_nothing_works(caplog, times):
    caplog.set_level("INFO", "outbox.harvest")
    troubles = Troubles(0)
    troubles.over("database")
    for _ in range(times):
        troubles.seen("database", "refused")
    for _ in range(times):
        troubles.over("database")
    assert [record.getMessage().split()[0] for record in caplog.records] == ["database_failed", "database_works_again"]


def test_a_circuit_is_open_while_an_outage_lasts():
    troubles = Troubles(3)
    assert troubles.circuit.state == "closed"
    troubles.seen("kafka", "away")
    troubles.seen("database", "away too")
    assert (troubles.circuit.state, troubles.circuit.reason) == ("open", "kafka, database")
    troubles.over("kafka")
    assert troubles.circuit.state == "open"
    troubles.over("database")
    assert troubles.circuit.state == "closed"
