import pytest

from outbox.core.election.denials import Denial, Refusals


@pytest.mark.parametrize(
    ("denied_s", "denial"), [(0, Denial.BEARABLE), (59.9, Denial.BEARABLE), (60, Denial.RENEW), (600, Denial.RENEW)]
)
def test_a_member_that_is_refused_for_long_is_replaced(denied_s, denial):
    assert Refusals().judge(denied_s, 1000.0, 60.0) is denial


@pytest.mark.parametrize(
    ("now", "denied_s", "denial"),
    [
        (1059.0, 59.0, Denial.BEARABLE),
        (1060.0, 60.0, Denial.GIVE_UP),
        (1119.0, 60.0, Denial.GIVE_UP),
        (1120.0, 60.0, Denial.RENEW),
        (1120.0, 0.0, Denial.BEARABLE),
    ],
)
def test_a_refusal_that_begins_soon_after_ends_the_process_and_a_later_one_is_another(now, denied_s, denial):
    denials = Refusals()
    denials.renewed(1000.0)
    assert denials.judge(denied_s, now, 60.0) is denial
