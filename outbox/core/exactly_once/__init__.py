"""What exactly-once delivery decides. Pure: who calls holds the locks, asks the servers and knows the time."""
