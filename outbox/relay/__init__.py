"""The relay: sends deliveries to HTTP receivers."""
