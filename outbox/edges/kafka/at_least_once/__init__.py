"""The idempotent producer."""
