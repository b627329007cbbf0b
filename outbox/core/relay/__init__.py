"""Decisions about deliveries: messages that a relay sends to HTTP receivers. Pure."""
