from types import SimpleNamespace
from uuid import uuid4

import pytest

from outbox.exceptions import NotAvailable
from outbox.service.status_line import StatusLine


def daemon(**given):
    return SimpleNamespace(
        **{"state": "running", "leader_ids": {0: uuid4()}, "in_flight": 2, "statistics": {}, **given}
    )


class Counted:
    most = 100

    def __init__(self, waiting=7):
        self.number, self.is_closed = waiting, False

    def waiting(self):
        if self.number is None:
            raise NotAvailable("away")
        return self.number

    def close(self):
        self.is_closed = True


def line(backlog, **given):
    return StatusLine(daemon(**given), backlog, lambda text: None).line()


@pytest.mark.parametrize(("waiting", "said"), [(7, "backlog 7"), (100, "backlog 100+"), (None, "backlog unknown")])
def test_it_says_how_much_waits(waiting, said):
    assert line(Counted(waiting)).endswith(f", in flight 2, {said}")


def test_a_standby_asks_nothing_and_keeps_no_connection():
    backlog = Counted()
    assert line(backlog, leader_ids={}) == "running, standing by"
    assert backlog.is_closed


def test_it_ends_with_what_an_engine_says_about_its_batches():
    found = SimpleNamespace(delivered=1500, progress="batch 3: 500 in 0.4 s")
    text = line(Counted(), statistics={0: found})
    assert text.startswith("running, lanes 0, delivered 1,500, ")
    assert text.endswith("backlog 7, batch 3: 500 in 0.4 s")


def test_each_line_replaces_the_one_before():
    written = []
    shown = StatusLine(daemon(leader_ids={}), Counted(), written.append)
    shown.show()
    shown.close()
    assert written == ["\r\033[Krunning, standing by", "\r\033[K"]
