"""Ledger entries of slices, and the decision at the start of a driver."""

import dataclasses

import pytest

from outbox.core.exactly_once.ledger import DamagedEntry, ForeignEntry, UnknownEntryVersion
from outbox.spark.sink import slice_ledger
from outbox.spark.sink.slice_ledger import SliceEntry, judge

ENTRY = SliceEntry("orders", "q", 7, 1, 3, 3, 4, 12345, (5, 6, 6, 9_000_000_000), "origin")


def entry(epoch, slice_=0, slices=2, before=2, **fields):
    return dataclasses.replace(ENTRY, epoch=epoch, slice=slice_, slices=slices, slices_before=before, **fields)


def test_what_is_encoded_is_decoded():
    assert slice_ledger.decode(slice_ledger.encode(ENTRY)) == ENTRY
    assert slice_ledger.decode(slice_ledger.encode(dataclasses.replace(ENTRY, ids=()))).ids == ()
    assert slice_ledger.decode(slice_ledger.encode(dataclasses.replace(ENTRY, ids=(9, -3, 4)))).ids == (-3, 4, 9)


def test_half_a_million_ids_stay_below_what_a_topic_takes():
    ids = tuple(range(1, 1_500_000, 3))
    assert len(slice_ledger.encode(dataclasses.replace(ENTRY, ids=ids))) < 100_000


def test_every_kind_of_wrong_has_its_error():
    good = slice_ledger.encode(ENTRY)
    with pytest.raises(ForeignEntry, match="another program writes to this topic"):
        slice_ledger.decode(b"OBL" + good[3:])
    with pytest.raises(ForeignEntry):
        slice_ledger.decode(None)
    with pytest.raises(UnknownEntryVersion, match="version 9"):
        slice_ledger.decode(good[:3] + b"\x09" + good[4:])
    for cut in (4, 9, len(good) // 2, len(good) - 1):
        with pytest.raises(DamagedEntry):
            slice_ledger.decode(good[:cut])
    with pytest.raises(DamagedEntry):
        slice_ledger.decode(good[:20] + b"?" + good[21:])


def test_a_new_ledger_begins_at_epoch_0():
    assert judge([None, None], "orders", "q", 0, 2) == slice_ledger.Start(0, {}, {})


def test_an_epoch_that_follows_is_begun_in_every_slice():
    start = judge([entry(6), entry(6, 1)], "orders", "q", 7, 2)
    assert start == slice_ledger.Start(2, {0: 6, 1: 6}, {})


def test_a_half_delivered_epoch_is_known():
    start = judge([entry(7, count=3, digest=9), entry(6, 1)], "orders", "q", 7, 2)
    assert start == slice_ledger.Start(2, {0: 7, 1: 6}, {0: (3, 9)})


def test_the_first_epoch_may_be_half_delivered():
    assert judge([entry(0, before=0), None], "orders", "q", 0, 2).done.keys() == {0}


def test_the_slice_count_may_change_between_epochs():
    assert judge([entry(6), entry(6, 1), None], "orders", "q", 7, 3).slices_before == 2
    assert judge([entry(6), entry(6, 1)], "orders", "q", 7, 1).slices_before == 2
    # The third slice had its last entry when there were three slices before.
    found = [entry(7, slices=3), entry(6, 1), entry(2, 2, slices=3, before=3)]
    assert judge(found, "orders", "q", 7, 3).last == {0: 7, 1: 6, 2: 2}


def test_the_slice_count_may_not_change_within_an_epoch():
    with pytest.raises(slice_ledger.SlicesChanged, match="Start once with slices=2"):
        judge([entry(7), entry(6, 1), None], "orders", "q", 7, 3)


def test_a_ledger_without_entries_is_refused_after_the_first_epoch():
    with pytest.raises(slice_ledger.LedgerLost, match="begin_at=7"):
        judge([None, None], "orders", "q", 7, 2)
    assert judge([None, None], "orders", "q", 7, 2, begin_at=7).last == {}


@pytest.mark.parametrize("found", [[entry(6), None], [entry(6), entry(5, 1)], [entry(5), entry(5, 1)]])
def test_a_ledger_with_missing_entries_is_refused(found):
    with pytest.raises(slice_ledger.LedgerLost, match="Restore the ledger topic"):
        judge(found, "orders", "q", 7, 2)


def test_another_query_is_refused():
    with pytest.raises(slice_ledger.OtherQuery, match="the checkpoint was deleted or moved"):
        judge([entry(7), entry(7, 1)], "orders", "other", 0, 2)


def test_another_database_is_refused():
    found = [entry(6), entry(6, 1)]
    with pytest.raises(
        slice_ledger.OtherDatabase, match="written for the database origin, but this is the database other"
    ):
        judge(found, "orders", "q", 7, 2, origin="other")
    for known, given in (("origin", "origin"), ("", "other"), ("origin", "")):
        found = [entry(6, origin=known), entry(6, 1, origin=known)]
        assert judge(found, "orders", "q", 7, 2, origin=given).last == {0: 6, 1: 6}


def test_an_entry_tells_the_order_of_its_records():
    for order, is_by_id in (("", True), ("id,line", True), ("ts", False), ("ts,id", False)):
        found = slice_ledger.decode(slice_ledger.encode(dataclasses.replace(ENTRY, order=order)))
        assert (found.order, found.is_by_id) == (order, is_by_id)


def test_an_old_checkpoint_is_refused():
    with pytest.raises(slice_ledger.CheckpointBehind, match="at epoch 7, but the checkpoint is at epoch 5"):
        judge([entry(7), entry(7, 1)], "orders", "q", 5, 2)
