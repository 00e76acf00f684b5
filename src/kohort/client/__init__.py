"""The client: one core without I/O, driven by a thread, by asyncio or by the simulation.

A face (`consumer.py`, `async_consumer.py`, `producer.py`, `admin.py`, `group_member.py`, `range_reader.py`) hands the core
coroutines and scripts; a driver (`thread_driver.py`, `asyncio_driver.py`) steps it and owns sockets and clock.

From the wire upwards: `links.py` turns bytes into answers, `cluster.py` knows leaders and coordinators and has the one way to
send, `membership*.py` keeps a place in a group, `positions.py` finds where to read, `fetching.py` reads ahead, `retained.py`
deals out fairly, `commits.py` keeps commits in order, `consumer_core.py` ties them together.
"""
