"""Groups on their way between the classic and the consumer protocol, and classic members of consumer groups."""
