"""The journal: group records as Kafka's bytes, and where they are stored."""
