"""Calls of the HTTP client."""
