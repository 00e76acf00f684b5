"""The broker's connections: listening, framing, dispatch to handlers, and responses in order."""
