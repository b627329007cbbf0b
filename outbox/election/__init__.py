"""NELI's member of the consumer group: who owns which lane, on real brokers. What to do about it belongs to harvest."""
