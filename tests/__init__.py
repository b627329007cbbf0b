"""Whatever harvests here runs on a runtime that watches over its locks."""

from tests.support import watched

watched.install()
