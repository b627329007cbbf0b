"""Messages: from the arguments of stash() to the inserted rows, and the identity of a message for its consumer."""
