"""A driver of its own, to be killed: `python -m tests.spark.driver URL TABLE SERVERS NAME CHECKPOINT`."""

import sys
import time

import outbox.spark
from tests.spark.conftest import CONFIG


def main():
    url, table, servers, name, place = sys.argv[1:]
    spark = outbox.spark.session(name, "local[2,4]", CONFIG, kafka=False)
    outbox.spark.register(spark)
    frame = spark.readStream.format("outbox").options(url=url, table=table, maxRecords=300, slices=2).load()
    sink = outbox.spark.KafkaSink(name, servers, slices=2, id_header="id")
    give_up_at = time.monotonic() + 300
    while time.monotonic() < give_up_at:
        query = frame.writeStream.foreachBatch(sink).option("checkpointLocation", place).start()
        try:
            query.awaitTermination()
        except Exception as error:
            print(str(error).splitlines()[0], flush=True)
            # Spark gives its Python processes ten seconds to start, which is little on a loaded machine.
            if "failed to connect back" not in str(error):
                raise


if __name__ == "__main__":
    main()
