"""Queries that move between Spark's own Kafka source and kohort's, with their checkpoint."""
