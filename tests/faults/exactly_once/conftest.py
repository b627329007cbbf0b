"""Scenes of exactly-once harvesters, on the servers of the run or on servers that the test may stop."""

import os
from contextlib import contextmanager

import pytest

from outbox.devstack import Kafka, Postgres
from tests.faults.conftest import open_scene
from tests.harvest.exactly_once.bench import Bench, create_tables
from tests.harvest.exactly_once.conftest import bench, proxied, server_of_its_own, undisturbed  # noqa: F401
from tests.support.databases import fresh_database
from tests.support.proxy import Proxy

GIVEN = {"tables": create_tables, "DELIVERY": "exactly-once", "BATCH_MAX": 200, "IO_BACKOFF": 0.1}
LINES = ("4.1", "3.9")


@pytest.fixture(scope="session")
def exact_scenes(postgres, bootstrap_servers, tmp_path_factory):
    """Opens scenes on the servers that the whole run shares."""
    return lambda **given: open_scene(
        tmp_path_factory.mktemp("exact"),
        url=os.environ["DATABASE_URL"],
        servers=bootstrap_servers,
        **{**GIVEN, **given},
    )


@pytest.fixture
def exact(exact_scenes):
    with exact_scenes() as scene:
        yield scene


@pytest.fixture(scope="session")
def fragile_exact_scenes(own_servers, pytestconfig, tmp_path_factory):
    """Opens scenes on servers of their own: `scene.kafka` and `scene.postgres`."""
    usual = pytestconfig.getoption("kafka_version")

    @contextmanager
    def open_fragile(version=None, *, brokers=1, kafka=None, postgres=None, **given):
        with (
            Kafka(version or usual, brokers=brokers, properties=kafka) as cluster,
            Postgres(settings=postgres) as server,
            open_scene(
                tmp_path_factory.mktemp("fragile"),
                url=server.url,
                servers=cluster.bootstrap_servers,
                **{**GIVEN, "copies": brokers, **given},
            ) as scene,
        ):
            scene.kafka, scene.postgres = cluster, server
            yield scene

    return open_fragile


@pytest.fixture(params=LINES)
def every_line(request, fragile_exact_scenes):
    """A scene per Kafka line, for the long runs."""
    with fragile_exact_scenes(request.param) as scene:
        yield scene


@pytest.fixture
def breakable(request, kafka_factory, postgres, bench_on):
    """A bench whose Kafka is behind a proxy and may be killed: `breakable.kafka`, `breakable.proxy`."""
    with Proxy(kafka=True) as proxy:
        cluster = kafka_factory(getattr(request, "param", None), advertised_port=proxy.port)
        proxy.target = cluster.brokers[0].port
        with bench_on(proxy.address) as made:
            made.kafka, made.proxy = cluster, proxy
            yield made
            proxy.heal()


@pytest.fixture
def bench_on(postgres, bootstrap_servers):
    """Makes a bench on a database and brokers of the test's choice."""

    @contextmanager
    def make(servers=None, url=None):
        with fresh_database(url or os.environ["DATABASE_URL"]) as fresh:
            made = Bench(fresh, servers or bootstrap_servers)
            try:
                yield made
            finally:
                made.db.close()

    return make
