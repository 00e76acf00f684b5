"""The Spark source's driver side: which offsets a batch reads, and the query's membership in its group."""
