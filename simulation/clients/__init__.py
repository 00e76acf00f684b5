"""Applications on the project's own clients, in virtual time.

Their brokers delay, lose, repeat and reorder answers.

    python -m simulation --clients --seeds 1000

The client's core is the one that ships. The checkers compare what an application saw with what the partitions hold.
"""
