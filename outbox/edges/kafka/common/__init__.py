"""Clients built from the settings, shared by all protocols."""
