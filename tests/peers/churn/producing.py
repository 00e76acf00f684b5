"""A steady stream of numbered records, and what was acknowledged of it."""

from __future__ import annotations

import threading
import time
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

FLUSH_S = 90


class Stream:
    """Produces to all partitions in turn, from a thread, with librdkafka's idempotent producer.

    Attributes:
        acknowledged: by partition and offset: when it was produced (ns, monotonic), and the number.
    """

    def __init__(self, servers: str, topics: dict[str, int], per_s: float) -> None:
        self.acknowledged: dict[str, dict[int, tuple[int, int]]] = {
            f"{topic}/{number}": {} for topic, count in topics.items() for number in range(count)
        }
        self._partitions = list(self.acknowledged)
        self._produced_ns: list[int] = []
        self._failed: list[str] = []
        self._per_s = per_s
        self._stopping = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": FLUSH_S * 1000,
                "log_level": 2,
                "topic.metadata.refresh.interval.ms": 1_000,
            }
        )
        self._thread = threading.Thread(target=self._run, name="churn-producer", daemon=True)
        self._thread.start()

    def grow(self, topic: str, count: int) -> None:
        """From now on produces to new partitions of a topic too."""
        for number in range(count):
            where = f"{topic}/{number}"
            if where not in self.acknowledged:
                self.acknowledged[where] = {}
                self._partitions.append(where)

    def _run(self) -> None:
        started, sent = time.monotonic(), 0
        while not self._stopping.wait(0.02):
            while sent < (time.monotonic() - started) * self._per_s:
                topic, partition = self._partitions[sent % len(self._partitions)].split("/")
                value, now_ns = str(sent).encode(), time.monotonic_ns()
                try:
                    self._producer.produce(topic, value, partition=int(partition), on_delivery=self._delivered)
                except KafkaException as error:
                    if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                        raise
                    break  # a new partition that it has not heard of yet
                self._produced_ns.append(now_ns)
                sent += 1
            self._producer.poll(0)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failed.append(str(error))
            return
        where = f"{message.topic()}/{message.partition()}"
        number = int(message.value())
        self.acknowledged[where][message.offset()] = (self._produced_ns[number], number)

    def finish(self) -> dict[str, list[tuple[int, int]]]:
        """Ends the stream and waits for what is under way.

        Returns:
            By partition, in the order of offsets.

        Raises:
            RuntimeError: a record was not acknowledged, or offsets have a gap: nothing can be checked against that.
        """
        self.flush()
        for where, records in self.acknowledged.items():
            if sorted(records) != list(range(len(records))):
                raise RuntimeError(f"the acknowledged offsets of {where} have gaps")
        return {where: [records[n] for n in range(len(records))] for where, records in self.acknowledged.items()}

    def flush(self) -> None:
        """Ends the stream and waits for what is under way.

        Raises:
            RuntimeError: a record was not acknowledged.
        """
        self.stop()
        left = self._producer.flush(FLUSH_S)
        del self._producer  # closes its connections
        if self._failed or left:
            raise RuntimeError(f"{left} records are unacknowledged, {len(self._failed)} failed: {self._failed[:3]}")

    def stop(self) -> None:
        """Produces nothing more; may be called again."""
        self._stopping.set()
        self._thread.join()
