"""Django settings of the test project; addresses come from the environment, which the devstack's plugin fills."""

import environ

from outbox.conf import from_env

env = environ.Env()

SECRET_KEY = "test-only"
DEBUG = False
USE_TZ = True
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "tests.urls"
DATABASES = {
    "default": env.db("DATABASE_URL", default="postgresql://postgres@127.0.0.1:5432/outbox"),
}
DATABASES["default"]["TEST"] = {"NAME": env("OUTBOX_TEST_DATABASE", default="test_outbox")}
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "outbox",
    "example_project.heroes",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "static/"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
OUTBOX = {"BOOTSTRAP_SERVERS": "localhost:9092", **from_env()}
