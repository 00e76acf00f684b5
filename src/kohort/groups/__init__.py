"""The group coordinator's core: pure state machines without clock, sockets, randomness or threads.

The caller feeds events to `GroupMachine.step` and carries out the effects in its `Effects`. Begin with `machine`.
"""
