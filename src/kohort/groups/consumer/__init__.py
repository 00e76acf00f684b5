"""The consumer protocol: heartbeats, target assignments, and reconciliation towards them. Source: KIP-848."""
