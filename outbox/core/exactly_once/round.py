"""The rounds of a process: each reads a page, sends it and purges what was sent, beside the ones before and after it.

Three regions go on together. The *reader* reads a page beside the sending of the one before if that was full, else when
that has ended. The *page being sent* ends when every lane that has a share of it has committed it or failed. The
*purge* of what was committed is sent when the page ends. After the last page of a backlog it waits until the next read
returns: its commit then flushes that page too. If that read is not sent, or takes long, the purge does not wait for it.

Pure: who owns it holds a lock, and submits what is `due` before giving it up.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Generic, TypeVar

from outbox.core.region import Region, Transitions

P = TypeVar("P")


class ReaderState(Enum):
    WAITING = "waiting"
    """For a lane, for the lease, or for the end of the page being sent."""
    LOADING = "loading"
    """What operators hold."""
    READING = "reading"
    DEALING = "dealing"
    """A page is divided among the lanes, and handed over when the one before has ended."""
    FLUSHING = "flushing"
    """What was read is to be on the server's disk before it is committed."""
    PAUSING = "pausing"
    ENDING = "ending"
    """The last lane has left, or nothing can go on."""
    ENDED = "ended"


class Reads(Enum):
    WAITS = "nothing may be read"
    LOADS = "holds are asked for"
    LOADED = "holds are known"
    READS = "a page is asked for"
    SLOW = "the server takes its time"
    RETURNED = "the page is there"
    FAILED = "the server has failed"
    FLUSHES = "lanes have their shares, and nothing else flushes the page"
    FLUSHED = "the page is flushed"
    DEALT = "lanes have their shares, or need none"
    RESTS = "nothing is to be done for a while"
    GOES_ON = "the pause is over"
    ENDS = "these rounds are to end"
    ENDED = "the reader has ended"


_R, _E = ReaderState, Reads
_GOING_ON = {
    (_R.WAITING, _E.WAITS): _R.WAITING,
    (_R.WAITING, _E.LOADS): _R.LOADING,
    (_R.LOADING, _E.SLOW): _R.LOADING,
    (_R.LOADING, _E.LOADED): _R.WAITING,
    (_R.LOADING, _E.FAILED): _R.PAUSING,
    (_R.WAITING, _E.READS): _R.READING,
    (_R.READING, _E.SLOW): _R.READING,
    (_R.READING, _E.FAILED): _R.PAUSING,
    (_R.READING, _E.RETURNED): _R.DEALING,
    (_R.DEALING, _E.RESTS): _R.PAUSING,
    (_R.DEALING, _E.DEALT): _R.WAITING,
    (_R.DEALING, _E.FLUSHES): _R.FLUSHING,
    (_R.FLUSHING, _E.SLOW): _R.FLUSHING,
    (_R.FLUSHING, _E.FLUSHED): _R.WAITING,
    (_R.FLUSHING, _E.FAILED): _R.PAUSING,
    (_R.PAUSING, _E.GOES_ON): _R.WAITING,
}
READER = Transitions(
    "reader",
    ReaderState.WAITING,
    {
        **_GOING_ON,
        **{
            (state, Reads.ENDS): ReaderState.ENDING
            for state in ReaderState
            if state not in (ReaderState.ENDING, ReaderState.ENDED)
        },
        # It notices when it comes by.
        **{
            (ReaderState.ENDING, event): ReaderState.ENDING for event in Reads if event not in (Reads.ENDS, Reads.ENDED)
        },
        (ReaderState.ENDING, Reads.ENDED): ReaderState.ENDED,
    },
)
# What a purge that is held back waits for is here, or does not come soon.
_LETS_PURGE = frozenset({Reads.WAITS, Reads.LOADS, Reads.SLOW, Reads.RETURNED, Reads.FAILED, Reads.ENDS})


class PageState(Enum):
    """The one being sent."""

    NONE = "none"
    MORE = "more"
    """It was full: the next one is read beside it."""
    LAST = "last"
    """All that there was: a record must not wait in memory for a transaction longer than for its own."""


class Sends(Enum):
    HANDED_OVER_FULL = "lanes have their shares, and more waits"
    HANDED_OVER_LAST = "lanes have their shares, and no more waits"
    ENDED = "no lane has a share any more"


PAGE = Transitions(
    "page being sent",
    PageState.NONE,
    {
        (PageState.NONE, Sends.HANDED_OVER_FULL): PageState.MORE,
        (PageState.NONE, Sends.HANDED_OVER_LAST): PageState.LAST,
        (PageState.MORE, Sends.ENDED): PageState.NONE,
        (PageState.LAST, Sends.ENDED): PageState.NONE,
    },
)


class Purging(Enum):
    """Of the page that was sent last."""

    NONE = "none"
    """Nothing was committed since the last one, and that one is done."""
    HELD_BACK = "held back"
    """Until the next read has returned: one commit for both."""
    DUE = "due"
    """To be submitted before the lock is given up."""
    UNDER_WAY = "under way"
    """Submitted, and repeated until it is done."""


class Purges(Enum):
    PAGE_ENDED = "a page has ended, and batches of it are committed"
    LAST_PAGE_ENDED = "so too, and the next read is about to begin"
    READ = "the next read has returned, or does not soon"
    SUBMITTED = "it is on its way"
    SETTLED = "the purge sent last is done"


PURGING = Transitions(
    "purge",
    Purging.NONE,
    {
        (Purging.NONE, Purges.PAGE_ENDED): Purging.DUE,
        (Purging.NONE, Purges.LAST_PAGE_ENDED): Purging.HELD_BACK,
        (Purging.HELD_BACK, Purges.READ): Purging.DUE,
        (Purging.DUE, Purges.SUBMITTED): Purging.UNDER_WAY,
        (Purging.UNDER_WAY, Purges.SETTLED): Purging.NONE,
        # A page may end before the purge before it has told so, and then it is that one's outcome that counts.
        (Purging.UNDER_WAY, Purges.PAGE_ENDED): Purging.DUE,
        (Purging.UNDER_WAY, Purges.LAST_PAGE_ENDED): Purging.HELD_BACK,
        (Purging.HELD_BACK, Purges.SETTLED): Purging.HELD_BACK,
        (Purging.NONE, Purges.SETTLED): Purging.NONE,
    },
)


class BacklogState(Enum):
    """After the last page that was divided."""

    NONE = "none"
    MORE = "more"
    """It was full: more waits than is sent."""


class Divided(Enum):
    PAGE = "a page that was not full is divided"
    FULL_PAGE = "a full page is divided"


BACKLOG = Transitions(
    "backlog",
    BacklogState.NONE,
    {
        **{(state, Divided.PAGE): BacklogState.NONE for state in BacklogState},
        **{(state, Divided.FULL_PAGE): BacklogState.MORE for state in BacklogState},
    },
)


class AfterDivision(Enum):
    """What the reader does with a page that is divided."""

    HAND_OVER = "hand the shares over when the page before has ended"
    READ_ON = "read what follows: all of it is held"
    REST = "pause: there is nothing to send"


def after_division(*, has_shares: bool, is_full: bool, has_advanced: bool) -> AfterDivision:
    """Total. `has_advanced`: the next read begins above this one."""
    if has_shares:
        return AfterDivision.HAND_OVER
    return AfterDivision.READ_ON if is_full and has_advanced else AfterDivision.REST


class News(Enum):
    """What the reader is told, and takes in before the next read."""

    JOINED = "a lane is ready: it is read for from the beginning"
    WOKEN = "there is something new to read"
    ELSEWHERE = "a page came from another server than the one on which a lane was taken over"


class ReaderStep(Enum):
    """What the reader does next."""

    END = "end"
    RECONNECT = "reconnect"
    WAIT = "wait"
    LOAD = "load holds"
    READ = "read"


class Round(Generic[P]):
    """`P`: the purge of one committed batch."""

    def __init__(self) -> None:
        self.reader, self.page, self.purging = Region(READER), Region(PAGE), Region(PURGING)
        self._backlog = Region(BACKLOG)
        self._shares = 0
        self._committed: list[P] = []
        self._news: set[News] = set()

    @property
    def is_ending(self) -> bool:
        return self.reader.state in (ReaderState.ENDING, ReaderState.ENDED)

    @property
    def is_page_sent(self) -> bool:
        """None is being sent."""
        return self.page.state is PageState.NONE

    @property
    def waits_for_page(self) -> bool:
        """The next read begins when the page has ended."""
        return self.page.state is PageState.LAST

    # ---- the reader

    def next_step(self, *, may_read: bool, needs_holds: bool) -> ReaderStep:
        if self.is_ending:
            return ReaderStep.END
        if self.waits_for_page:
            return ReaderStep.WAIT
        if News.ELSEWHERE in self._news:
            self._news.discard(News.ELSEWHERE)
            return ReaderStep.RECONNECT
        if not may_read:
            return ReaderStep.WAIT
        return ReaderStep.LOAD if needs_holds else ReaderStep.READ

    def on(self, event: Reads) -> None:
        """The reader has come so far."""
        self.reader.on(event)
        if event in _LETS_PURGE and self.purging.state is Purging.HELD_BACK:
            self.purging.on(Purges.READ)

    def tell(self, news: News) -> None:
        self._news.add(news)

    @property
    def must_read_soon(self) -> bool:
        """It pauses no longer."""
        return self.is_ending or bool(self._news & {News.JOINED, News.WOKEN})

    def take_news(self) -> bool:
        """Before a read: what is told during it is for the next one. Whether to read from the beginning."""
        has_joined = News.JOINED in self._news
        self._news -= {News.JOINED, News.WOKEN}
        return has_joined

    def divided(self, *, is_full: bool) -> None:
        """A page."""
        self._backlog.on(Divided.FULL_PAGE if is_full else Divided.PAGE)

    @property
    def is_behind(self) -> bool:
        """More waits than is sent."""
        return self._backlog.state is BacklogState.MORE

    # ---- the page being sent

    def handed_over(self, shares: int, *, is_full: bool) -> None:
        if shares:
            self._shares = shares
            self.page.on(Sends.HANDED_OVER_FULL if is_full else Sends.HANDED_OVER_LAST)

    def committed(self, purge: P) -> None:
        """One share of it, which ends then."""
        self._committed.append(purge)

    def share_ended(self) -> None:
        self._shares -= 1
        if self._shares:
            return
        was_last = self.waits_for_page
        self.page.on(Sends.ENDED)
        if self._committed:
            self.purging.on(Purges.LAST_PAGE_ENDED if was_last else Purges.PAGE_ENDED)

    # ---- the purge

    def due(self) -> Sequence[P]:
        """What is to be submitted now."""
        if self.purging.state is not Purging.DUE:
            return ()
        self.purging.on(Purges.SUBMITTED)
        due, self._committed = self._committed, []
        return due

    def settled(self) -> None:
        """The purge submitted last."""
        self.purging.on(Purges.SETTLED)
