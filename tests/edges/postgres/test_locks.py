"""What people are told of whoever is in the way of an advisory lock. Who that is, test_marks.py asks."""

from outbox.edges.postgres.at_least_once.marks import LaneBlocked
from outbox.edges.postgres.common import locks
from outbox.edges.postgres.common.locks import Holder

FIRST, SECOND = Holder(12, "web", "psql", 3.0, 0), Holder(13, "web", "", None, 0)


def test_a_remedy_is_a_statement_that_ends_every_holder():
    assert "terminate it: SELECT pg_terminate_backend(12). " in locks.remedy([FIRST])
    assert "terminate them: SELECT pg_terminate_backend(12), pg_terminate_backend(13). " in locks.remedy(
        [FIRST, SECOND]
    )


def test_where_the_holder_has_ended_nobody_is_to_be_ended():
    assert str(LaneBlocked([])) == "Another session holds the lock of the lane: a session that has ended since."
