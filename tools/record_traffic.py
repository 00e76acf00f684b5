"""Record the traffic of real groups for `simulation.recorded_traffic`: `python -m tools.record_traffic FILE [SECONDS]`.

A broker of this process has a topic for each load. Members of a group read it, each with at most `MEMBER_PER_S`
records per second, and commit as consumers do. A reader of lag writes down what it sees every `LOOK_S`. All loads run
at once, for ten minutes unless SECONDS says otherwise, and take a tenth of a core together.
"""

from __future__ import annotations

import gzip
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulation.recorded_traffic import PARTITIONS

from kohort import Admin, Broker, Consumer, Producer, TopicPartition
from kohort.client.admin.values import NewTopic
from kohort.lag import GroupLag, LagReader
from kohort.lag.evaluation import OPEN_TRANSACTION

MEMBER_PER_S = 40
MEMBERS, JOINS_AT, LEAVES_AT = 3, 0.1, 0.9
"""The members at the beginning. Another one joins after this part of the time, and leaves after that part."""
LOOK_S, WRITE_S = 5.0, 0.2
BLOCKED_FROM, BLOCKED_UNTIL = 0.2, 0.7
"""The parts of the time at which a partition can't be read from, and again."""
BLOCKED = 3
POISON = b"poison"

Rate = Callable[[int, float], float]
"""Records per second that are written to a partition, by partition and part of the time."""


def spike(partition: int, part: float) -> float:
    """Return 80 records per second for all, and 360 for a tenth of the time."""
    return (360 if 0.3 <= part < 0.4 else 80) / PARTITIONS


def ramp(partition: int, part: float) -> float:
    """Return 30 per second at the beginning, and 280 at the end."""
    return (30 + 250 * part) / PARTITIONS


def quiet_night(partition: int, part: float) -> float:
    """Return 120 per second, and one between the evening and the morning."""
    return (1 if 0.25 <= part < 0.8 else 120) / PARTITIONS


def steady(partition: int, part: float) -> float:
    """Return 100 per second for all."""
    return 100 / PARTITIONS


def hot_key(partition: int, part: float) -> float:
    """Return 6 per second for each partition, and 60 for one: more than a member reads."""
    return 60.0 if partition == 5 else 6.0


@dataclass
class Load:
    """One load, and what was seen of it.

    Attributes:
        name: Its name.
        rate: What is written.
        is_poisoned: Whether a record comes that no member can process.
        has_transaction: Whether a transaction stays open in a partition.
        samples: What was seen, by look.
        rebalances: The downtime of each rebalance that the coordinator recorded, by its end, in milliseconds.
        members: The threads of the members, each with what ends it.
    """

    name: str
    rate: Rate
    is_poisoned: bool = False
    has_transaction: bool = False
    samples: list[dict[str, Any]] = field(default_factory=list)
    rebalances: dict[int, int] = field(default_factory=dict)
    members: list[tuple[threading.Thread, threading.Event]] = field(default_factory=list)

    @property
    def topic(self) -> str:
        """The topic, whose name is the group's too."""
        return self.name.replace(" ", "-")

    def join(self, servers: str) -> None:
        """Let a member join."""
        ended = threading.Event()
        thread = threading.Thread(target=self._read, args=(servers, ended), daemon=True)
        self.members.append((thread, ended))
        thread.start()

    def leave(self) -> None:
        """Let the last member leave."""
        thread, ended = self.members.pop()
        ended.set()
        thread.join()

    def _read(self, servers: str, ended: threading.Event) -> None:
        """Read as a member, a record in a 40th of a second, until it is to leave."""
        with Consumer(
            servers, group_id=self.topic, auto_offset_reset="earliest", isolation_level="read_committed",
            max_poll_records=MEMBER_PER_S // 4,
        ) as consumer:  # fmt: skip
            consumer.subscribe([self.topic])
            while not ended.is_set():
                records = list(consumer.poll(200))
                refused = [record for record in records if record.value == POISON]
                for record in refused[:1]:
                    tp = TopicPartition(record.topic, record.partition)
                    consumer.seek(tp, record.offset)
                    consumer.pause(tp)
                ended.wait(len(records) / MEMBER_PER_S)

    def look(self, group: GroupLag, begun_ms: int, now_ms: int) -> None:
        """Write down what was read of the group."""
        found = {part.partition.partition: part for part in group.partitions}
        members = group.description.members
        numbers = range(PARTITIONS)
        parts = [found.get(number) for number in numbers]
        owners = {tp.partition: place for place, member in enumerate(members) for tp in member.assignment or ()}
        self.samples.append(
            {
                "at_ms": now_ms - begun_ms,
                "members": len(members),
                "owners": [owners.get(number, -1) for number in numbers],
                "committed": [0 if part is None else part.committed or 0 for part in parts],
                "open": [number for number, part in found.items() if part.cause == OPEN_TRANSACTION],
                "end": [0 if part is None else part.log_end or 0 for part in parts],
                "oldest_ms": [
                    None if part is None or part.oldest_ms is None else part.oldest_ms - begun_ms for part in parts
                ],
            }
        )
        for rebalance in group.description.rebalances or ():
            if rebalance.ended_ms is not None:
                self.rebalances[rebalance.ended_ms - begun_ms] = rebalance.downtime_ms


LOADS = (
    Load("spike", spike),
    Load("ramp", ramp),
    Load("quiet night", quiet_night),
    Load("stuck partition", steady, is_poisoned=True),
    Load("hot key", hot_key),
    Load("open transaction", steady, has_transaction=True),
)


@contextmanager
def open_transaction(servers: str, topic: str) -> Iterator[None]:
    """Hold a transaction open in the blocked partition."""
    with Producer(servers, transactional_id=topic, transaction_timeout_ms=900_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"x", partition=BLOCKED)
        producer.flush()
        yield
        producer.commit_transaction()


def record(loads: Sequence[Load], seconds: float) -> None:
    """Run the loads, and write down what is seen of them."""
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(config={"group.initial.rebalance.delay.ms": 0}))
        servers = broker.bootstrap_servers
        admin, producer = stack.enter_context(Admin(servers)), stack.enter_context(Producer(servers))
        reader = stack.enter_context(LagReader(servers))
        reader.rebalances = 20
        admin.create_topics([NewTopic(load.topic, PARTITIONS) for load in loads]).all()
        for load in loads:
            for _ in range(MEMBERS):
                load.join(servers)
        everywhere = [TopicPartition(load.topic, number) for load in loads for number in range(PARTITIONS)]
        begun_s, begun_ms, looked_s = time.monotonic(), time.time_ns() // 1_000_000, 0.0
        written = {(load.name, number): 0.0 for load in loads for number in range(PARTITIONS)}
        due = sorted(
            [(JOINS_AT, load, "join") for load in loads] + [(LEAVES_AT, load, "leave") for load in loads]
            + [(BLOCKED_FROM, load, "block") for load in loads if load.is_poisoned or load.has_transaction]
            + [(BLOCKED_UNTIL, load, "unblock") for load in loads if load.has_transaction],
            key=lambda event: event[0],
        )  # fmt: skip
        transactions = stack.enter_context(ExitStack())
        last_s = 0.0
        while (passed_s := time.monotonic() - begun_s) < seconds:
            part = passed_s / seconds
            while due and due[0][0] <= part:
                _, load, event = due.pop(0)
                if event == "join":
                    load.join(servers)
                elif event == "leave":
                    load.leave()
                elif event == "unblock":
                    transactions.close()
                elif load.has_transaction:
                    transactions.enter_context(open_transaction(servers, load.topic))
                else:
                    producer.send(load.topic, POISON, partition=BLOCKED)
            for load in loads:
                for number in range(PARTITIONS):
                    before = written[load.name, number]
                    after = written[load.name, number] = before + load.rate(number, part) * (passed_s - last_s)
                    for _ in range(math.floor(after) - math.floor(before)):
                        producer.send(load.topic, b"x", partition=number)
            last_s = passed_s
            if passed_s >= looked_s:
                looked_s += LOOK_S
                report = reader.read(also=everywhere)
                for load in loads:
                    if load.topic in report.groups:
                        load.look(report.groups[load.topic], begun_ms, report.taken_ms)
            time.sleep(WRITE_S)
        for load in loads:
            while load.members:
                load.leave()


def main() -> None:
    """Record, and write the file."""
    path, seconds = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 600.0
    record(LOADS, seconds)
    found = {
        load.name: {
            "member_per_s": MEMBER_PER_S,
            "downtime_ms": sorted(load.rebalances.values()),
            "samples": load.samples,
        }
        for load in LOADS
    }
    path.write_bytes(gzip.compress(json.dumps(found, separators=(",", ":")).encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
