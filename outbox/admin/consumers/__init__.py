"""The page Consumers: how far each consumer is, and how it goes on."""
