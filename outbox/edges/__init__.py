"""I/O without decisions, shared by the rooms: SQL on the table, Kafka clients."""
