"""PURE. One member of a region: what it does about its group, its control plane and its own progress."""
