"""The threads of exactly-once delivery: a lane and its transactions, and the rounds that lanes share."""
