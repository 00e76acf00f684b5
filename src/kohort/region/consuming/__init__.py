"""A member of a region that reads with a consumer: the threads around its machine."""
