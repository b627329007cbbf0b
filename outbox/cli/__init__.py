"""Programs that need no Django project: ``outbox-harvest``, driven by a YAML file."""
