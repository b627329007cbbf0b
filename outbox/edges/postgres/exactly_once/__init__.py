"""The statements of exactly-once delivery."""
