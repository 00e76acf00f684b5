"""The coordinator of transactions, its log, and producer ids."""
