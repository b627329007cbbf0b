"""Holds, in every delivery mode: the values that pass between the table of holds and the code that decides, and the
book of one exactly-once lane."""
