"""Consumer: fetching, returning records, positions, commits."""
