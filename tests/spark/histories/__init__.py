"""Histories of queries without a JVM: Spark's exact calls on the source, faults at each, and what must hold."""
