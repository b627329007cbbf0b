"""The Django application."""

from django.apps import AppConfig


class OutboxAppConfig(AppConfig):
    name = "outbox"
    label = "outbox"
    verbose_name = "Outbox"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django.core.signals import setting_changed

        from outbox import checks, conf, contrib

        checks.register_all()
        setting_changed.connect(conf.forget, dispatch_uid="outbox.conf")
        contrib.connect_task_events()
        contrib.connect_tracing()
