"""Stream frameworks that run while members and broker are killed, with an account of each record."""
