"""Spark queries in a consistent region."""
