"""Journals: append-only byte sequences whose bytes are on stores and whose commit point is the caller's transaction."""
