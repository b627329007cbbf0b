"""What is asked of a table and a role before a harvester relies on them."""
