"""What the lanes of a graph do with Kafka's client: a member of a processor's group, questions before a lane begins."""
