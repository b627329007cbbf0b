"""The demo of two services: orders go from one to the other through Kafka, and receipts come back, each once."""
