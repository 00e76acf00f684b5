"""The client: one core without I/O, driven by a thread, by asyncio or by the simulation.

cluster.py      what the client knows of brokers, and `Cluster.send`, which every part of the client uses
runtime.py      steps the coroutines on events and time that are handed in
links.py        connections as states: bytes and events in, commands out
"""
