"""Mutants: coordinators, journals and clients with one known fault each, and the checker that must detect it."""
