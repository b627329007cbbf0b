"""Settings from variables of the environment."""

import environ

from outbox import conf
from tests.conf.kit import errors_of


def test_from_env_gives_every_kind_its_shape():
    env = environ.Env()
    env.ENVIRON = {
        "OUTBOX_NAME": "shop",
        "OUTBOX_KEY_MAX_BYTES": "99",
        "OUTBOX_AUTOCOMMIT_STASH": "yes",
        "OUTBOX_BINARY_VALUES": "off",
        "OUTBOX_FLUSH_TIMEOUT": "2.5",
        "OUTBOX_KAFKA": '{"ssl.ca.location": "a,b=c"}',
        "OUTBOX_PRODUCER": "linger.ms=5,compression.type=lz4",
        "OUTBOX_FAILPOINTS": "not a setting",
        "PATH": "/bin",
    }
    raw = conf.from_env(env)
    assert raw == {
        "NAME": "shop",
        "KEY_MAX_BYTES": 99,
        "AUTOCOMMIT_STASH": True,
        "BINARY_VALUES": False,
        "FLUSH_TIMEOUT": 2.5,
        "KAFKA": {"ssl.ca.location": "a,b=c"},
        "PRODUCER": {"linger.ms": "5", "compression.type": "lz4"},
    }
    assert conf.parse(raw).election.flush_timeout_s == 2.5


def test_from_env_leaves_nonsense_to_the_parser():
    env = environ.Env()
    env.ENVIRON = {"OUTBOX_KEY_MAX_BYTES": "ten", "OUTBOX_AUTOCOMMIT_STASH": "maybe", "OUTBOX_TABEL": "x"}
    assert set(errors_of(conf.from_env(env))) == {"KEY_MAX_BYTES", "AUTOCOMMIT_STASH", "TABEL"}
