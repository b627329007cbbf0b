"""The statements of consumers on Django's connection, a module for each table, and the transaction around functions."""
