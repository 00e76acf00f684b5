"""A place in a group: joining, holding an assignment, leaving, in either protocol."""
