"""Offsets: committed, fetched, deleted, expired. Source: spec 1."""
