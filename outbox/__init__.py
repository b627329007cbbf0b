"""Transactional outbox for Django and Apache Kafka."""

__version__ = "0.1.0"
