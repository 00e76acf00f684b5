"""Checks and tools of the project itself."""
