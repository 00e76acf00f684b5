"""Membership in a group: joining, holding an assignment, leaving, in each of the protocols."""
