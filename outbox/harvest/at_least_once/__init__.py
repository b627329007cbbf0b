"""The threads of at-least-once delivery."""
