"""Heroes: created over HTTP, announced through the outbox."""
