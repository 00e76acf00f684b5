"""The deterministic simulation of the group coordinator: virtual time, a faulty network and disk, clients that crash.

    python -m simulation --seeds 1000

One seed is one run: a fault phase, a healing phase, then a phase in which every group must become stable again.
Checkers watch what the clients own and what the coordinator answers. A failure names its seed and the command that
repeats it.
"""
