"""What migrations need: adopting a table, expressions of columns and constraints, fields, roles."""
