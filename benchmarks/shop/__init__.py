"""A service whose consumers are measured: an app with its settings, and the same work without a consumer."""
