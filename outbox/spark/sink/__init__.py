"""The sink that delivers a DataFrame to Kafka exactly once."""
