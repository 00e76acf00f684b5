"""Spark's other places and versions: where application, queries and workers are not one machine's `local`."""
