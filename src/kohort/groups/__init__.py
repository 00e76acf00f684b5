"""The group coordinator's core: pure state machines without clock, sockets, randomness or threads.

A shell feeds events to `GroupMachine.step` and carries out what the `Outcome` says. See `machine`.
"""
