"""The group coordinator's journal in a topic of Apache Kafka."""
