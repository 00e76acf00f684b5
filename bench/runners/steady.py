"""Sends a record to each of some partitions at an even pace.

`python -m bench.runners.steady SERVERS TOPIC PARTITIONS PAUSE_S`; PARTITIONS is JSON. It goes on until
standard input ends.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from kohort import Producer

AT_ONCE: Any = {"linger_ms": 0, "reconnect_backoff_ms": 10, "reconnect_backoff_max_ms": 20, "retry_backoff_max_ms": 20}
"""The producer's settings: the reader is timed, not the sender."""


def main(servers: str, topic: str, partitions: str, pause_s: str) -> None:
    """Send until standard input ends; what can't be sent for a while is sent then."""
    ending = threading.Event()

    def send() -> None:
        with Producer(servers, **AT_ONCE) as producer:
            while not ending.wait(float(pause_s)):
                for partition in json.loads(partitions):
                    producer.send(topic, b"x", partition=partition)

    sending = threading.Thread(target=send)
    sending.start()
    sys.stdin.read()
    ending.set()
    sending.join()


if __name__ == "__main__":
    main(*sys.argv[1:5])
