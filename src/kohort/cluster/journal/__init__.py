"""The groups' journal in a topic of Apache Kafka."""
