"""Connections, the cluster as the client knows it, and what drives the core: no groups, no records."""
