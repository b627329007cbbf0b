"""Who owns which lane. Pure."""
