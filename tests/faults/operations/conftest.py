"""Faults that operations cause at the servers while harvesters run."""

from tests.faults.exactly_once.conftest import bench_on, fragile_exact_scenes  # noqa: F401
from tests.harvest.exactly_once.conftest import bench, proxied  # noqa: F401
