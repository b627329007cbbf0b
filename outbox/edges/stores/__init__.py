"""Stores of journals: where the objects are. A store raises `StoreFailed` for whatever goes wrong."""
