"""Applications on kohort's own clients, in virtual time, with brokers that delay, lose, repeat and reorder responses.

    python -m simulation --clients --seeds 1000

The client's core is the released one. The checkers compare what an application saw with what the partitions hold.
"""
