"""I/O without decisions: statements on PostgreSQL, calls of the Kafka client."""
