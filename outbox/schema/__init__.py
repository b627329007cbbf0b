"""Parts of the migrations: adoption of a table, expressions of columns and constraints, fields, roles."""
