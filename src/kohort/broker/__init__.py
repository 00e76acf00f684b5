"""The broker: sockets, request dispatch and group shards.

Only `kohort.cli`, `kohort.testing` and `kohort.Broker` import it.
"""

from kohort.broker.embedded import Broker, Fault

__all__ = ["Broker", "Fault"]
