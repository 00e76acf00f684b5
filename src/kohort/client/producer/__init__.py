"""Producer: batching, sending, transactions."""
