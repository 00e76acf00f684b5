"""The broker's connections: listening, framing, dispatch to handlers, and answers in order."""
