"""One shard of a coordinator: a journal, the machine that its records make, and those who wait for answers."""
