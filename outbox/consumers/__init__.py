"""Consumers: functions that handle messages of Kafka in Django transactions, each message exactly once."""
