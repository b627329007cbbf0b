"""What is held back, in every delivery mode: the values that pass between the table of holds and whoever decides, and
the book of one exactly-once lane."""
