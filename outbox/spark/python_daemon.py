"""The process from which Spark forks its Python workers. It imports everything that they need.

Otherwise each worker imports pandas, pyarrow and the Kafka client for itself: about a second of processor time for each
worker that starts. `sessions.session()` names this module in `spark.python.daemon.module`.
"""

import sys
from importlib import import_module

from pyspark.daemon import manager

for wanted in (
    "pandas",
    "pyarrow.compute",
    "confluent_kafka",
    "outbox.edges.kafka.exactly_once.transactional",
    "outbox.spark.sink.slice_writer",
):
    import_module(wanted)

# Spark puts the jar of its core on the path. The jar holds no Python, and a worker would read its 5,000 names again for
# every task: 50 ms.
sys.path[:] = [place for place in sys.path if not place.endswith(".jar")]
for place in [place for place in sys.path_importer_cache if ".jar" in place]:
    del sys.path_importer_cache[place]

if __name__ == "__main__":
    manager()  # type: ignore[no-untyped-call]
