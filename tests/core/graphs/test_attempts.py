"""What an owner concludes from the record of the one before it."""

import pytest

from outbox.core.graphs.attempts import Begun, Repeat, UnreadableRecord, after, decode, processor_of

AT = {"orders": 5}


@pytest.mark.parametrize(
    ("found", "repeat"),
    [
        (None, Repeat()),
        (Begun({"orders": 4}, 10), Repeat()),
        (Begun({"orders": 5, "stock": 1}, 10), Repeat()),
        (Begun(AT, 10), Repeat(careful=10)),
        (Begun(AT, 10, choice=(("orders", 10),)), Repeat(careful=10, choice=(("orders", 10),))),
        (Begun(AT, 1, 2), Repeat(careful=1, attempts=2)),
        (Begun(AT, 1, 2, error="boom"), Repeat(careful=1, attempts=2, error="boom")),
    ],
)
def test_a_record_counts_for_its_positions_alone(found, repeat):
    assert after(found, AT) == repeat


def test_it_can_be_written_and_read():
    found = Begun(AT, 3, 2, (("web", 2), ("shop", 1)), "boom")
    assert decode(found.encode("price")) == found
    assert processor_of(found.encode("price")) == "price"


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"processor":"a"}', b'{"processor":"a","positions":5}'])
def test_what_somebody_else_has_written_is_refused(value):
    with pytest.raises(UnreadableRecord):
        decode(value)
