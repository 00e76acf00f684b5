"""Keyed states: a mapping for each partition, saved with each checkpoint, which moves with the partition."""
