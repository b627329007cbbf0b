"""What the lanes of a process share: one reader, one thread of purges, one sweep."""
