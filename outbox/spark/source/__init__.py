"""The DataSource `outbox`: records of the table as a DataFrame."""
