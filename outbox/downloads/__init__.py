"""Programs from package registries: resolved, verified by a lock file and cached once."""
