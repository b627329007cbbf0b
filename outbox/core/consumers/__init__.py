"""What a consumer decides: which messages a transaction takes, whom a failure blames, when a partition may be read."""
