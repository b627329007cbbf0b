"""Connections, sessions, types and leases that all protocols share."""
