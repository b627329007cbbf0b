"""The dashboard: what it shows, its charts, and its sentence about the state."""
