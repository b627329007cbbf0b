"""Pages about consumers: how far each one is, the messages that it holds, and its dead letters."""
