"""Connections, the metadata cache, and the drivers of the core: no groups, no records."""
