"""The group coordinator in a world of its own: virtual time, a bad network, a bad disk, clients that die and wake.

    python -m simulation --seeds 1000

One seed is one run: a fault phase, then healing, then a phase in which every group must become whole again. Checkers
watch what the clients hold and what the coordinator answers; a failure names its seed and the command that repeats it.
"""
