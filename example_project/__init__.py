"""A small site that sends messages about its heroes to Kafka: a complete use of outbox in little code."""
