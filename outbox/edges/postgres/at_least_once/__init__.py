"""The statements of at-least-once delivery."""
