"""The registers of a journal: keys and values that an append checks and changes when it is committed.

The trigger has the same rules as SQL: `schema/journals.py`. A conformance test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping

from outbox.core.journal.values import AppendRefusal, Cause, Conditions, JournalState


def is_match(registers: Mapping[str, str], check: Mapping[str, str | None]) -> bool:
    """A journal without registers matches everything: nobody has claimed it yet."""
    return not registers or all(registers.get(name) == value for name, value in check.items())


def changed(registers: Mapping[str, str], conditions: Conditions) -> dict[str, str]:
    kept = {name: value for name, value in registers.items() if name not in set(conditions.drop)}
    return kept | dict(conditions.set)


def refusal(state: JournalState, conditions: Conditions) -> AppendRefusal | None:
    """Why the journal does not take the append as it is now."""
    name = state.name
    if state.suspect:
        return AppendRefusal(
            Cause.SUSPECT,
            f"The journal {name!r} takes no append: {state.suspect} Compare the database with the stores, then set the "
            "head: manage.py outbox_journal reset-head.",
        )
    if state.is_read_only:
        return AppendRefusal(
            Cause.READ_ONLY, f"The journal {name!r} is read-only. Allow appends to it, or choose another."
        )
    if conditions.offset is not None and conditions.offset != state.head:
        return AppendRefusal(
            Cause.WRONG_OFFSET,
            f"The append asks for offset {conditions.offset} of the journal {name!r}, whose head is {state.head}. Read "
            "what is there, then append with the present head.",
        )
    if not is_match(state.registers, conditions.check):
        return AppendRefusal(
            Cause.REGISTERS,
            f"The registers of the journal {name!r} are {dict(sorted(state.registers.items()))}, and the append checks "
            f"{dict(sorted(conditions.check.items()))}. Another writer has changed them: read them, then decide.",
        )
    return None


def without_content(journal: str) -> AppendRefusal:
    """Registers change with bytes alone: whoever reads the bytes then finds every change of them."""
    return AppendRefusal(
        Cause.NO_CONTENT, f"The append to the journal {journal!r} has no content. Append at least one byte."
    )
