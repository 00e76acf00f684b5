"""The demo: example programs that share a consumer group, one of which is killed, and an account of every flight.

- group_query.py and region_queries.py are the example programs, Spark applications to copy from.
- flights.py reads and replays the flights that the programs read.
- play.py runs all of them, kills one, and waits until nothing is left to read.
- account.py counts every flight once, and shows the tables and the picture.
"""

from __future__ import annotations

from kohort.demo.play import DemoOptions, run

__all__ = ["DemoOptions", "run"]
