"""Connections: bytes in, requests to their handlers, answers out in order."""
