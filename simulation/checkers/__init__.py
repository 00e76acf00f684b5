"""Checkers: properties that must hold in every run, of what clients hold and of the journal's second reading."""
