"""Pages of Django's admin beyond the list of pending records: the dashboard, what is held back, what was given up."""
