"""Checkers: properties that every run must keep, checked on the clients' state and on an independent journal model."""
