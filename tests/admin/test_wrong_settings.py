"""One wrong setting of the outbox is told by the checks, and the rest of the site goes on."""

import subprocess
import sys

import pytest
from django.contrib import admin
from django.test import override_settings
from django.urls import reverse

from tests.admin.conftest import DASHBOARD
from tests.admin.test_consumers import CONSUMERS

WRONG = {"LANES": "many"}
CODE = """
import django
from django.conf import settings

settings.OUTBOX = {"LANES": "many"}
django.setup()
from django.core.checks import run_checks
from django.urls import resolve

assert resolve("/admin/login/").url_name == "login"
print(*(message.id for message in run_checks()))
"""


def test_checks_and_other_pages_work_with_a_wrong_setting():
    found = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr
    assert "outbox.E001" in found.stdout.split()


def test_addresses_are_built_with_a_wrong_setting():
    with override_settings(OUTBOX=WRONG):
        for model_admin in admin.site._registry.values():
            assert model_admin.get_urls()


@pytest.mark.django_db
def test_the_dashboard_tells_a_wrong_setting(admin_client):
    addresses = [
        reverse(url) for url in (DASHBOARD, "admin:outbox_dashboard_parts", CONSUMERS)
    ]  # built once, for all tests
    with override_settings(OUTBOX=WRONG):
        for address in addresses:
            response = admin_client.get(address)
            assert response.status_code == 503
            assert "LANES" in response.content.decode()
