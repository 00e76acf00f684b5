"""A coordinator shard: a journal, the state machine of its records, and the requests that wait for answers."""
