"""The test project with an app that has consumers."""

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.consumers.shop"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
