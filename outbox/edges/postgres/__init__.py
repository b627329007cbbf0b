"""Every statement on PostgreSQL that is not a migration. Nothing here decides."""
