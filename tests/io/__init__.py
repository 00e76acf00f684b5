"""Shared input and output."""
