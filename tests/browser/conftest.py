"""One browser for all tests of this folder, a web server per database."""

import os

import pytest

from tests.browser.site import PASSWORD, USER, Browser, Site
from tests.support.databases import django, fresh_database


@pytest.fixture(scope="session")
def browser(browser_installed, tmp_path_factory):
    made = Browser(tmp_path_factory.mktemp("browser"))
    yield made
    made.quit()


@pytest.fixture(scope="session")
def site(browser, postgres, migrated_template, tmp_path_factory):
    """The admin on a database of its own, with an operator who may do everything."""
    with fresh_database(os.environ["DATABASE_URL"], template=migrated_template) as url:
        account = {"DJANGO_SUPERUSER_USERNAME": USER, "DJANGO_SUPERUSER_PASSWORD": PASSWORD}
        made = django("createsuperuser", "--noinput", "--email", "operator@example.com", url=url, **account)
        assert made.returncode == 0, made.stderr
        served = Site(url, tmp_path_factory.mktemp("site"))
        try:
            yield served
        finally:
            served.stop()
