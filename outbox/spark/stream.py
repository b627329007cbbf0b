"""The public place of `finish`, which ends a query of the source with no record left behind."""

from outbox.spark.source.statements import finish as finish
