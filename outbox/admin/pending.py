"""The pending records in Django's admin: search, filters, columns and the page of one record.

The pages cost little on a table of any size; ``outbox.admin.paging`` counts and pages.
"""

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.core.paginator import InvalidPage
from django.db import connections
from django.db.models import DurationField, ExpressionWrapper, Q
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.template.defaultfilters import filesizeformat
from django.urls import path
from django.utils import timezone
from django.utils.html import escape, format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.timesince import timesince

from outbox import conf
from outbox.admin import message_view
from outbox.admin.actions import confirm, selected, tell_rest
from outbox.admin.base import may_see_payload, waiting
from outbox.admin.edit import edit_view
from outbox.admin.paging import BINARY_PREFIX_BYTES, LIST_CHARS, Count, RecordPaginator, count, with_preview
from outbox.admin.wording import plural
from outbox.edges.postgres.operations.server import common_topics
from outbox.models import OutboxRecord
from outbox.operations import actions as operations
from outbox.redaction import TEXT_MAX, redact
from outbox.schema.expressions import known

HEADER_CHARS = 1_000
# The topic filter reads this many rows at each end of the table, and offers this many topics.
TOPIC_SAMPLE_ROWS = 500
TOPIC_CHOICES_MAX = 50
# The order of ids may differ a little from that of create_time: the oldest record is among the first few.
OLDEST_SAMPLE_ROWS = 100
BIGINT_MAX = 2**63 - 1
# By the database's clock, which also wrote create_time.
_AGE = ExpressionWrapper(Now() - known("create_time"), output_field=DurationField())

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[OutboxRecord]
else:
    _ModelAdmin = admin.ModelAdmin


# --- the list -------------------------------------------------------------------------------------------------------


class RecordChangeList(ChangeList):
    """Django's list, without the options that read the whole table."""

    summary: str
    estimate: Count

    def get_ordering_field(self, field_name: Any) -> Any:
        # `sortable_by` only hides the links: a query string could still sort the table by any column.
        return "id" if field_name == "id" else None

    def get_results(self, request: HttpRequest) -> None:
        paginator = RecordPaginator(self.queryset, self.list_per_page)
        try:
            self.result_list = paginator.records(self.page_num)
        except InvalidPage:
            self.page_num = paginator.num_pages
            self.result_list = paginator.records(self.page_num)
        self.estimate = paginator.estimate
        self.result_count = paginator.count
        self.full_result_count = None
        self.show_full_result_count = False
        self.show_admin_actions = True
        self.can_show_all = False
        self.multi_page = paginator.num_pages > 1
        self.paginator = paginator
        filtered = bool(self.queryset.query.where)
        self.summary = summary(count(self.root_queryset) if filtered else self.estimate, self.root_queryset)


def summary(backlog: Count, queryset: Any) -> str:
    """The backlog and the age of its oldest record in a sentence."""
    first = queryset.order_by("pk").annotate(age=_AGE).values_list("age", flat=True)
    ages = [age or timedelta() for age in first[:OLDEST_SAMPLE_ROWS]]  # an adopted table may lack a create_time
    if not ages:
        return "No records are waiting. The outbox is empty."
    records = "record is" if backlog.rows == 1 else "records are"
    return f"{str(backlog).capitalize()} {records} waiting; the oldest has waited for {plain_age(max(ages))}."


def plain_age(age: timedelta) -> str:
    seconds = int(age.total_seconds())
    if seconds < 60:
        return f"{max(seconds, 0)} second{'' if seconds == 1 else 's'}"
    now = timezone.now()
    return timesince(now - age, now).replace("\xa0", " ")


# --- filters --------------------------------------------------------------------------------------------------------


def topics(queryset: Any) -> list[str]:
    """Topics that are likely to be in the table: the most common ones of its statistics, and those at each end.

    SELECT DISTINCT would read the whole table.
    """
    connection = connections[queryset.db]
    table = connection.ops.quote_name(queryset.model._meta.db_table)
    with connection.cursor() as cursor:
        common = common_topics(cursor, table)
    ends = set[str]()
    for order in ("pk", "-pk"):
        ends.update(queryset.order_by(order).values_list("kafka_topic", flat=True)[:TOPIC_SAMPLE_ROWS])
    likely = [*dict.fromkeys([*sorted(ends), *common])]
    return sorted(likely[:TOPIC_CHOICES_MAX])


class TopicFilter(admin.SimpleListFilter):
    title = "topic"
    parameter_name = "topic"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        found = topics(model_admin.get_queryset(request))
        asked = self.value()
        return [(topic, topic) for topic in (found if asked is None or asked in found else [asked, *found])]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        topic = self.value()
        if topic is None:
            return queryset
        return queryset.none() if "\0" in topic else queryset.filter(kafka_topic=topic)


AGES = {
    "1min": ("over 1 minute", timedelta(minutes=1)),
    "5min": ("over 5 minutes", timedelta(minutes=5)),
    "1h": ("over 1 hour", timedelta(hours=1)),
    "1d": ("over 1 day", timedelta(days=1)),
}


class AgeFilter(admin.SimpleListFilter):
    title = "age"
    parameter_name = "age"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, label) for name, (label, _) in AGES.items()]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        if self.value() not in AGES:
            return queryset
        # By the database's clock, which also wrote create_time.
        return queryset.filter(create_time__lt=Now() - AGES[str(self.value())][1])


_HELP_TEXTS = {
    "key_whole": "The harvester sends the records of one topic and key in the order of their ids.",
    "value_whole": f"The page shows the value after the redactor, cut at {TEXT_MAX:,} characters.",
    "headers": "The harvester sends the headers in this order; a name may repeat.",
    "age": "The database's clock measures the age.",
}

# --- the page -------------------------------------------------------------------------------------------------------


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"{text[:characters]}…"


@admin.register(OutboxRecord)
class OutboxRecordAdmin(_ModelAdmin):
    """Records that wait for the harvester. It stops sending a key before one of its records is changed."""

    class Media:
        css = {"all": ["outbox/dashboard.css"]}

    actions = ("pause",)
    change_form_template = "admin/outbox/record_change.html"
    list_display = ("id", "topic", "key", "value_start", "size", "age", "create_time")
    list_display_links = ("id",)
    list_filter = (TopicFilter, AgeFilter)
    list_per_page = 100
    list_max_show_all = 0
    ordering = ("id",)
    search_fields = ("kafka_key", "kafka_topic", "id")
    search_help_text = (
        "The search finds exact matches of a key, a topic or an id. #42 searches for the id only, which is always fast."
    )
    show_facets = admin.ShowFacets.NEVER
    show_full_result_count = False
    sortable_by = ("id",)
    view_on_site = False
    readonly_fields = ("id", "topic_whole", "key_whole", "value_whole", "headers", "create_time", "age", "leader_id")
    fieldsets = (
        (
            None,
            {
                "fields": readonly_fields,
                "description": "The record waits for the harvester. It disappears from here once Kafka has it.",
            },
        ),
    )

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: OutboxRecord | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: OutboxRecord | None = None) -> bool:
        return False

    def get_urls(self) -> list[Any]:
        edit = waiting(self.admin_site.admin_view(self.edit_view))
        return [path("<int:pk>/edit/", edit, name="outbox_outboxrecord_edit"), *super().get_urls()]

    def edit_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        if not self._may_edit(request):
            raise PermissionDenied
        return edit_view(self, request, message_view.of_record(pk))

    def _may_edit(self, request: HttpRequest) -> bool:
        return request.user.has_perm("outbox.edit") and may_see_payload(request)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        link = {"outbox_dashboard": request.user.has_perm("outbox.view_sample")}
        return super().changelist_view(request, {**link, **(extra_context or {})})

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        links = {"outbox_edit": self._may_edit(request), "outbox_pause": self.has_pause_permission(request)}
        return super().change_view(request, object_id, form_url, {**links, **(extra_context or {})})

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("outbox.pause"))

    @admin.action(description="Pause the keys of these records", permissions=["pause"])
    def pause(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        """One statement for all selected records."""
        text = (
            "The harvester sends nothing more of these keys until you resume them on the page of holds. The outbox "
            "keeps their records in order. The action leaves out records without a key: pause their topic instead."
        )
        asked, why = confirm(
            self, request, queryset.only("kafka_topic", "kafka_key"), "pause", "Pause the keys of these records?", text,
            "Pause them", gives_up=False,
        )  # fmt: skip
        if asked is not None:
            return asked
        chosen = selected(request, queryset)
        outcome = operations.pause_keys(chosen.pks, actor=request.user.get_username(), reason=why)
        if outcome.changed:
            said = (
                f"You have paused {plural(outcome.changed, 'key')}. Records in flight still arrive; the harvester "
                "sends no others until you resume."
            )
            self.message_user(request, said, messages.SUCCESS)
        else:
            said = "Nothing was changed. The selected records have no key, are paused already, or no longer exist."
            self.message_user(request, said, messages.WARNING)
        tell_rest(self, request, chosen)
        return None

    def get_list_display(self, request: HttpRequest) -> Any:
        if may_see_payload(request):
            return self.list_display
        return tuple(name for name in self.list_display if name != "value_start")

    def get_readonly_fields(self, request: HttpRequest, obj: OutboxRecord | None = None) -> Any:
        return _allowed(request, self.readonly_fields)

    def get_fieldsets(self, request: HttpRequest, obj: OutboxRecord | None = None) -> Any:
        return [(name, {**options, "fields": _allowed(request, options["fields"])}) for name, options in self.fieldsets]

    def get_form(
        self, request: HttpRequest, obj: OutboxRecord | None = None, change: bool = False, **kwargs: Any
    ) -> Any:
        return super().get_form(request, obj, change, **{"help_texts": _HELP_TEXTS, **kwargs})

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return RecordChangeList

    def get_queryset(self, request: HttpRequest) -> Any:
        return OutboxRecord.objects.using(conf.current().database).order_by("id")

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> OutboxRecord | None:
        pk = _as_id(object_id)
        found = with_preview(self.get_queryset(request).annotate(waiting=_AGE), TEXT_MAX)
        record: OutboxRecord | None = None if pk is None else found.filter(pk=pk).first()
        return record

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        # Django would take any lookup on any column from the query string.
        return lookup in (TopicFilter.parameter_name, AgeFilter.parameter_name)

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:
        if not search_term:
            return queryset, False
        pk = _as_id(search_term.removeprefix("#"))
        if pk is not None and search_term.startswith("#"):
            by_id = queryset.filter(pk=pk)
            if by_id.exists():
                return by_id, False
        wanted = Q(kafka_key=search_term) | Q(kafka_topic=search_term)
        return queryset.filter(wanted if pk is None else wanted | Q(pk=pk)), False

    @admin.display(description="topic")
    def topic(self, record: OutboxRecord) -> str:
        return _cut(record.kafka_topic, LIST_CHARS)

    @admin.display(description="key", empty_value="(no key)")
    def key(self, record: OutboxRecord) -> str | None:
        return _cut(record.kafka_key, LIST_CHARS) or None

    @admin.display(description="value")
    def value_start(self, record: OutboxRecord) -> SafeString:
        return self._value(record, LIST_CHARS)

    @admin.display(description="size")
    def size(self, record: Any) -> str:
        size = record.text_bytes if record.binary_bytes is None else record.binary_bytes
        return "" if size is None else filesizeformat(size)

    @admin.display(description="age")
    def age(self, record: Any) -> str:
        if record.create_time is None:
            return ""
        return plain_age(getattr(record, "waiting", None) or timezone.now() - record.create_time)

    @admin.display(description="topic")
    def topic_whole(self, record: OutboxRecord) -> str:
        return str(record.kafka_topic)

    # Django uses empty_value only in lists; on the page of one record None would be shown as "None".
    @admin.display(description="key")
    def key_whole(self, record: OutboxRecord) -> str:
        return _cut(record.kafka_key, TEXT_MAX) or "(no key, and so no order)"

    @admin.display(description="value")
    def value_whole(self, record: Any) -> SafeString:
        value = self._value(record, TEXT_MAX)
        shown = format_html('<pre class="outbox-pre">{}</pre>', value)
        size = self.size(record)
        return shown if not size else format_html('{}<span class="outbox-size">{}</span>', shown, size)

    @admin.display(description="value and headers")
    def payload_hidden(self, record: OutboxRecord) -> str:
        return message_view.HIDDEN

    @admin.display(description="headers")
    def headers(self, record: OutboxRecord) -> str:
        # An adopted table may hold NULL instead of an empty array.
        pairs = zip(record.kafka_header_keys or (), record.kafka_header_values or (), strict=False)
        shown = message_view.shown_headers(record, pairs)
        rows = ((_cut(name, HEADER_CHARS), escape(_cut(text, HEADER_CHARS))) for name, text in shown)
        table = format_html_join("", "<tr><th>{}</th><td>{}</td></tr>", rows)
        return format_html("<table>{}</table>", table) if table else "(none)"

    def _value(self, record: Any, characters: int) -> SafeString:
        """Always escaped, even if a redactor returns a SafeString: the value comes from a writer."""
        if record.binary_bytes is not None:
            prefix = "\\x" + bytes(record.binary_start).hex()
            text = redact(record, prefix)
            more = "…" if text == prefix and record.binary_bytes > BINARY_PREFIX_BYTES else ""
            return SafeString(f"binary, {filesizeformat(record.binary_bytes)}: {escape(_cut(text, characters))}{more}")
        if record.text_bytes is None:
            return SafeString("<em>tombstone (no value)</em>")
        more = "…" if len(record.text_start) == TEXT_MAX < record.text_bytes else ""
        return SafeString(escape(_cut(redact(record, record.text_start), characters) + more))


def _allowed(request: HttpRequest, names: Any) -> Any:
    """The fields of a page. Without the permission one note takes the place of value and headers."""
    if may_see_payload(request):
        return names
    return tuple("payload_hidden" if name == "value_whole" else name for name in names if name != "headers")


def _as_id(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= BIGINT_MAX else None
