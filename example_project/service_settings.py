"""What the orders service and the payments service set in the same way, wholly from the environment.

DATABASE_URL              required, e.g. postgresql://postgres@127.0.0.1:5432/orders
OUTBOX_BOOTSTRAP_SERVERS  required by the harvester and the consumer, e.g. 127.0.0.1:9092; OUTBOX_* sets all of OUTBOX
ORDERS_TOPIC              default: orders
RECEIPTS_TOPIC            default: receipts
SECRET_KEY                default: a new one at every start
DEBUG                     default: false
"""

import environ
from django.core.management.utils import get_random_secret_key

env = environ.Env()

DEBUG = env.bool("DEBUG", default=False)
SECRET_KEY = env.str("SECRET_KEY", default="") or get_random_secret_key()
DATABASES = {"default": env.db("DATABASE_URL")}
ORDERS_TOPIC = env.str("ORDERS_TOPIC", default="orders")
RECEIPTS_TOPIC = env.str("RECEIPTS_TOPIC", default="receipts")

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
