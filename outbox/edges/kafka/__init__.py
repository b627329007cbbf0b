"""Every call of a Kafka client. Nothing here decides."""
