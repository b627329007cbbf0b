"""The harvester: moves records from the table to Kafka."""
