"""The test project behind a web server, with the strictest policy that a project may have for its pages."""

from tests.settings import *  # noqa: F403
from tests.settings import MIDDLEWARE

MIDDLEWARE = [
    "tests.browser.settings.Policy",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    *MIDDLEWARE,
]
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)


class Policy:
    """Content-Security-Policy on every answer."""

    def __init__(self, get_response):
        from outbox.admin import live

        live.EVERY_S = 1  # tests wait for the page to renew itself
        self.get_response = get_response

    def __call__(self, request):
        response = self.get_response(request)
        response["Content-Security-Policy"] = POLICY
        return response
