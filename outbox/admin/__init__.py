"""Django's admin: the pending records, the dashboard, consumers, holds, dead letters and the audit log."""

from outbox.admin import audit_log, dead_letters, holds, message_view  # noqa: F401  they register their models
from outbox.admin.consumers import held  # noqa: F401
from outbox.admin.consumers import page as consumers_page  # noqa: F401
from outbox.admin.dashboard import page  # noqa: F401
from outbox.admin.pending import OutboxRecordAdmin as OutboxRecordAdmin
