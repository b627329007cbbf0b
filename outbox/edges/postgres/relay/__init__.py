"""The statements of a relay."""
