"""Read-only pages. Heroes are created on the site, because one created here would have no message."""

from typing import Any

from django.contrib import admin

from example_project.heroes.models import Hero, Received


class LookOnly(admin.ModelAdmin):  # type: ignore[type-arg]  # Django's class takes its parameter only in stubs
    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return False


@admin.register(Hero)
class HeroAdmin(LookOnly):
    list_display = ("id", "name", "power", "created")
    search_fields = ("=name",)


@admin.register(Received)
class ReceivedAdmin(LookOnly):
    list_display = ("topic", "partition", "offset", "key", "received")
