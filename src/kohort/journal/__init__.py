"""The group coordinator's records as Kafka's bytes, and where they live."""
