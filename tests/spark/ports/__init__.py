"""Kinds of public PySpark jobs on Kafka, as small programs, run by `test_public_jobs.py`."""
