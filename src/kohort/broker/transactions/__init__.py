"""The transaction coordinator, its log, and producer ids."""
