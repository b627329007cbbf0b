"""From what an application stashes to the rows that are inserted, and what a consumer asks of a message."""
