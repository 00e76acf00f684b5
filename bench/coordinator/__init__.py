"""A load of group members that behave as Java's client does, for measuring a coordinator from outside."""
