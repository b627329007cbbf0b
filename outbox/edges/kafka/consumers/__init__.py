"""What consumers do with Kafka's client: a member of their group, and questions about topics."""
