"""Held messages of consumers, and their dead letters: two pages on one table.

Every action writes a request, and the consumer that owns the partition carries it out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db import connections
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from outbox import conf
from outbox.admin import explain, message_view
from outbox.admin.actions import Seen
from outbox.admin.consumers import messages as wording
from outbox.admin.edit import Editing
from outbox.admin.kept_base import KeptAdmin
from outbox.admin.message_view import ShownMessage
from outbox.admin.wording import ago
from outbox.models import ConsumerDeadLetter, ConsumerHold
from outbox.operations import held as operations
from outbox.operations.positions import positions_of

KEY_CHARS = 60
UNDECIDED = "undecided"
_WIDE = ("value", "header_names", "header_values", "history")


class _Stored(admin.SimpleListFilter):
    """Its choices come from the positions, because a page must not read all held messages for them."""

    def names(self) -> Iterator[str]:
        raise NotImplementedError

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in sorted(self.names())]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return queryset.filter(**{str(self.parameter_name): self.value()}) if self.value() else queryset


def _topics() -> dict[str, set[str]]:
    settings = conf.current()
    return positions_of(settings).topics(connections[settings.database])


class HeldConsumerFilter(_Stored):
    title = parameter_name = "consumer"

    def names(self) -> Iterator[str]:
        yield from _topics()


class HeldTopicFilter(_Stored):
    title = parameter_name = "topic"

    def names(self) -> Iterator[str]:
        yield from set().union(*_topics().values())


class HeldReasonFilter(admin.SimpleListFilter):
    """Without a choice: the messages that failed. Those that wait behind them can be very many."""

    title = parameter_name = "reason"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(UNDECIDED, "waits for your decision"), *ConsumerHold.Reason.choices]

    def choices(self, changelist: Any) -> Iterator[Any]:
        first, *others = super().choices(changelist)
        yield {**first, "display": "All but those that wait behind another"}
        yield from others

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        if self.value() == UNDECIDED:
            return queryset.filter(operations.UNDECIDED, wanted="")
        return queryset.filter(reason=self.value()) if self.value() else queryset.filter(operations.TRIED)


class _MessagesAdmin(KeptAdmin):
    edit_text = "Edit and try again…"
    list_display_links = ("name",)
    search_fields = ("topic", "key", "offset")
    search_help_text = "The search finds exact matches of a topic, a key or an offset."
    number_field = "offset"
    gone = "This message no longer exists: it was handled or deleted in the meantime."
    condition = Q()
    explained = staticmethod(wording.explained)

    @staticmethod
    def editing_of(message: ShownMessage) -> Editing:
        return Editing(
            what="message",
            title=f"Edit message {message.dead_id}",
            text=(
                "The consumer handles the message with your changes, and after it the later messages of its key. The "
                "topic and the key stay."
            ),
            button="Save and try again",
            done="You have saved the message. The consumer tries it within a second while it runs.",
            save=partial(operations.edit, message.dead_id or 0),
            fixed={"topic": "", "key": ""},
        )

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """The same for both pages."""
        return self._may(request, "view_consumerhold")

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        return lookup in ("consumer", "topic", "reason") or super().lookup_allowed(lookup, value, request)

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).filter(self.condition).defer(*_WIDE)

    def stored_key(self, text: str) -> bytes:
        return text.encode(errors="replace")

    def message_of(self, row: ConsumerHold) -> ShownMessage:
        return message_view.of_message(row)

    def selector(self, rows: Sequence[Seen]) -> Any:
        return operations.MessageSelector(ids=tuple(row[0] for row in rows))

    def is_editable(self, row: ConsumerHold | None) -> bool:
        return row is not None

    # ---- columns

    @admin.display(description="message")
    def name(self, row: ConsumerHold) -> str:
        return str(row)

    @admin.display(description="consumer, and the key")
    def whose(self, row: ConsumerHold) -> SafeString:
        return format_html("{}<br>{}", row.consumer, explain.cut(wording.key_of(row), KEY_CHARS))

    @admin.display(description="now")
    def now(self, row: ConsumerHold) -> str:
        return wording.became(row, timezone.now())


class HeldMessageList(ChangeList):
    def get_results(self, request: HttpRequest) -> None:
        """Counts the messages behind those of the page, and behind no others."""
        super().get_results(request)
        ids = [row.pk for row in self.result_list]
        self.result_list = operations.with_behind(self.root_queryset.filter(pk__in=ids)).order_by("id")


@admin.register(ConsumerHold)
class HeldMessageAdmin(_MessagesAdmin):
    actions = ("retry", "skip", "discard")
    condition = operations.LIVE
    list_display = ("name", "whose", "why_and_step", "now", "behind", "attempts", "age")
    list_filter = (HeldConsumerFilter, HeldTopicFilter, HeldReasonFilter)
    ordering = ("id",)
    readonly_fields = (
        "name", "consumer", "reason", "why", "step", "now", "since", "attempts", "delays", "last_error",
        "behind_one", "record", "attempts_made",
    )  # fmt: skip

    def get_changelist(self, request: HttpRequest, **given: Any) -> type[ChangeList]:
        return HeldMessageList

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        row = self.get_object(request, object_id)
        given = dict(extra_context or {})
        if row is not None and row.reason == ConsumerHold.Reason.WAITING:  # else its buttons would not find it
            given["outbox_list"] = f"{reverse('admin:outbox_consumerhold_changelist')}?reason={row.reason}"
        return super().change_view(request, object_id, form_url, given)

    def buttons_of(self, row: ConsumerHold | None) -> dict[str, str]:
        if row is None:
            return {}
        leave = {"skip": "Skip…", "discard": "Discard…"}
        return leave if row.reason == ConsumerHold.Reason.WAITING else {"retry": "Retry now", **leave}

    @admin.action(description="Retry now", permissions=["retry"])
    def retry(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        return self.ask(
            request, queryset, operations.retry, "Retry held messages?",
            "The consumer tries these messages, and after each one the later messages of its key.", "Retry them",
            "retried", gives_up=False,
        )  # fmt: skip

    @admin.action(description="Skip: move to the dead letters", permissions=["skip"])
    def skip(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        text = (
            "The consumer moves each message to the dead letters and then handles the later messages of its key. You "
            "can requeue a dead letter, but its key is then out of order."
        )
        return self.ask(
            request, queryset, operations.skip, "Skip held messages?", text, "Skip them", "moved to the dead letters",
        )  # fmt: skip

    @admin.action(description="Discard: delete for good", permissions=["discard"])
    def discard(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        text = (
            "The consumer deletes these messages for good and never handles them. It then handles the later messages "
            "of their keys."
        )
        return self.ask(
            request, queryset, operations.discard, "Discard held messages?", text, "Delete them for good", "deleted",
        )  # fmt: skip

    @admin.display(description="behind it")
    def behind(self, row: Any) -> str:
        return wording.behind_text(row.behind)

    @admin.display(description="messages behind it")
    def behind_one(self, row: ConsumerHold) -> str:
        found = operations.with_behind(type(row).objects.using(row._state.db).filter(pk=row.pk))
        return wording.behind_text(sum(found.values_list("behind", flat=True)))

    @admin.display(description="since")
    def age(self, row: ConsumerHold) -> str:
        return ago(row.since, timezone.now())


@admin.register(ConsumerDeadLetter)
class ConsumerDeadLetterAdmin(_MessagesAdmin):
    actions = ("requeue", "discard")
    condition = operations.DEAD
    list_display = ("name", "whose", "why_and_step", "now", "last_error_start", "attempts", "age")
    list_filter = (HeldConsumerFilter, HeldTopicFilter, "reason")
    ordering = ("-id",)
    readonly_fields = (
        "name", "consumer", "reason", "why", "step", "now", "since", "died_at", "attempts", "delays", "last_error",
        "record", "attempts_made",
    )  # fmt: skip

    def buttons_of(self, row: ConsumerHold | None) -> dict[str, str]:
        return {"requeue": "Requeue", "discard": "Discard…"} if row is not None else {}

    @admin.action(description="Requeue: try again", permissions=["requeue"])
    def requeue(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        return self.ask(
            request, queryset, operations.requeue, "Requeue dead letters?",
            "The consumer tries each message again. It may have handled later messages of the key.", "Requeue them",
            "requeued", gives_up=False,
        )  # fmt: skip

    @admin.action(description="Discard: delete for good", permissions=["discard"])
    def discard(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        text = (
            "The consumer deletes these messages for good. Kafka may still have them, as long as the topic keeps them."
        )
        return self.ask(
            request, queryset, operations.discard_dead_letters, "Discard dead letters?", text, "Delete them for good",
            "deleted",
        )  # fmt: skip

    @admin.display(description="since")
    def age(self, row: ConsumerHold) -> str:
        return "" if row.died_at is None else ago(row.died_at, timezone.now())
