"""Simulated clients of the coordinator: members of each protocol, their processes, and clients outside the groups."""
