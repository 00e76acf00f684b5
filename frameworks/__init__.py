"""Programs of stream frameworks that run on a broker while members and broker are killed, with an account of each record."""
