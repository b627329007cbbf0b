"""The decisions of at-least-once delivery. Pure."""
