"""PURE. The state machine of one member: its reactions to its group, its control plane and its own progress."""
