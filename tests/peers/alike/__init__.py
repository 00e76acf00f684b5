"""Identical requests to Apache Kafka and to our broker, at every version; the answers must be the same."""
