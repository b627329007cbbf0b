"""The threads that call the user's functions."""
