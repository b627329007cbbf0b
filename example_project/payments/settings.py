"""Settings of the payments service: a database and a NAME of its own. service_settings.py lists the variables."""

from example_project.service_settings import *  # noqa: F403
from outbox.conf import from_env

OUTBOX = {"NAME": "payments", "DATABASE": "default", **from_env()}
INSTALLED_APPS = ["outbox", "example_project.payments"]
