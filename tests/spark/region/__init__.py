"""Checkpoint folders of Spark queries that a region takes back."""
