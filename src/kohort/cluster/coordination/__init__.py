"""Coordination of several coordinators: leader election, and the placement of shards."""
