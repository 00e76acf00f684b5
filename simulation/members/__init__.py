"""Clients of the simulated coordinator: members of each protocol, their processes, and clients outside the groups."""
