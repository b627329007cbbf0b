"""The statements of Spark's engine and of its proof of delivery; those of its source are in `spark.source`."""
