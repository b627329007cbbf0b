"""A small site that tells Kafka about its heroes: the shortest complete use of outbox."""
