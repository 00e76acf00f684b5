"""Forks a publisher for each line of its input, `servers topic sequence call`, which kills itself at that call.

Even calls die before they happen, odd ones after. Says for each how the publisher ended.
"""

from __future__ import annotations

import os
import signal
from uuid import UUID

import kohort.client.producer.producer  # noqa: F401 - before the fork, which then takes milliseconds
import kohort.region.sinks.kafka_topic as sinks
from kohort.client.producer.producer import Producer
from kohort.region.staged import StagedKey
from tests.region.forked import fork_for_each_line

REGION = UUID(int=0xA11CE)
KEYS = tuple(StagedKey(REGION, 5, member, 1) for member in ("a", "b", "idle"))
CALLS = ("init_transactions", "begin_transaction", "send_arrow", "send", "commit_transaction")


class DyingProducer(Producer):
    """A producer that kills its process at one of its calls."""

    at = 0
    number = 0

    def __getattribute__(self, name: str) -> object:
        found = super().__getattribute__(name)
        if name not in CALLS:
            return found

        def call(*args: object, **given: object) -> object:
            kind = type(self)
            kind.number += 1
            if kind.number * 2 == kind.at:
                os.kill(os.getpid(), signal.SIGKILL)
            done = found(*args, **given)  # type: ignore[operator]
            if kind.number * 2 + 1 == kind.at:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return call


def publish(line: str) -> None:
    servers, topic, sequence, at = line.split()
    DyingProducer.at = int(at)
    sinks.Producer = DyingProducer  # type: ignore[misc]
    sinks.KafkaTopic(servers, topic).bind("region", REGION).publish(int(sequence), KEYS)


if __name__ == "__main__":
    fork_for_each_line(publish)
