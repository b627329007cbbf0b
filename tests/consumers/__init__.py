"""Consumers: functions that handle messages of Kafka in Django transactions."""
