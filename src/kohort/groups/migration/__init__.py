"""Conversion between the classic and the consumer protocol, classic members of consumer groups, and request routing."""
