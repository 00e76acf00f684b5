"""The consumer protocol: heartbeats, targets, and how members get from one to the next. Source: KIP-848."""
