"""Harvesting with Spark: the worker of a lane and the process that drives Spark for it."""
