"""Two brokers asked the same: scenarios, what each side answered, and where the answers differ.

A scenario is a function of a side and a version. It runs once against Apache Kafka and once against our broker; then
what the sides answered is compared field by field. What can't be the same (member ids, producer ids, topic ids, ports,
times) is replaced by names that the scenario gives.
"""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kohort.errors import ErrorCode
from kohort.wire.batch import BatchRecord, build_batch
from kohort.wire.data import ListOffsetsRequest, ProduceRequest
from kohort.wire.discovery import CreateTopicsRequest, MetadataRequest
from kohort.wire.framing import APIS
from kohort.wire.groups import DescribeGroupsRequest, FindCoordinatorRequest
from kohort.wire.schema import Struct
from kohort.wire.transactions import InitProducerIdRequest
from tests.broker.raw import RawClient
from tests.support.waiting import until

NOT_COMPARED = frozenset({"throttle_time_ms", "host", "port", "cluster_id", "finalized_features_epoch"})
KEYS = (
    "name",
    "topic",
    "topic_id",
    "group_id",
    "transactional_id",
    "resource_name",
    "partition_index",
    "partition",
    "index",
)
"""By these things are told apart in lists, whose order means nothing: Kafka's comes from hash maps."""
ORDERED = frozenset({"record_errors"})
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NOT_READY = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}
CLOSED, SILENT = "the connection was closed", "no answer came"


@dataclass(frozen=True, slots=True)
class Said:
    """One answer of a side."""

    label: str
    answer: Struct | str
    on_purpose: str = ""


class Side:
    """One of the two brokers while a scenario runs.

    Args:
        address: HOST:PORT.
        prefix: what names of this run begin with; the same on both sides.
        host: the address to connect from; None: any.
    """

    def __init__(self, address: str, prefix: str, host: str | None = None) -> None:
        self.address = address
        self._host = host
        self.prefix = prefix
        self.said: list[Said] = []
        self._clients: dict[str, RawClient] = {}
        self._owed: dict[str, list[str]] = {}
        self._names: dict[str, str] = {}
        self._numbers: dict[int, str] = {}
        self._on_purpose = ""

    @contextmanager
    def on_purpose(self, reason: str) -> Iterator[None]:
        """Answers meanwhile differ, by a decision that docs/protocol-coverage.md has under this name."""
        self._on_purpose = reason
        yield
        self._on_purpose = ""

    def name(self, word: str) -> str:
        """A name of this run for a group, topic or transactional id."""
        return f"{self.prefix}-{word}"

    def call(self, value: Any, name: str) -> Any:
        """Show this id (text, UUID or number) as `<name>` in what is compared; returns it."""
        if isinstance(value, str) and value:
            self._names[value] = f"<{name}>"
        elif isinstance(value, uuid.UUID) and value.int:
            self._names[str(value)] = f"<{name}>"
        elif isinstance(value, int) and value >= 0:
            self._numbers[value] = f"<{name}>"
        return value

    def client(self, by: str) -> RawClient:
        """The connection of this name."""
        if by not in self._clients:
            self._clients[by] = RawClient(self.address, f"client-{by}", host=self._host)
            self._owed[by] = []
        return self._clients[by]

    def send(self, message: Any, version: int | None = None, by: str = "main") -> None:
        """Send a request, without the fields that the version does not have."""
        version = message.MAX_VERSION if version is None else version
        fit(message, version)
        client = self.client(by)
        self._owed[by].append(f"{APIS[message.API_KEY].name} {version} by {by}")
        client.send(message, version)

    def receive(self, by: str = "main", keep: Callable[[Any], None] | None = None) -> Any:
        """The answer to the oldest request of a connection; `keep` leaves in it what is to be compared."""
        label = self._owed[by].pop(0)
        try:
            answer = self._clients[by].receive()
        except (ConnectionResetError, TimeoutError) as error:
            said = CLOSED if isinstance(error, ConnectionResetError) else SILENT
            self.said.append(Said(label, said, self._on_purpose))
            self._clients.pop(by).close()
            return None
        if keep is not None:
            keep(answer)
        self.said.append(Said(label, answer, self._on_purpose))
        return answer

    def ask(
        self, message: Any, version: int | None = None, by: str = "main", keep: Callable[[Any], None] | None = None
    ) -> Any:
        """Send and receive."""
        self.send(message, version, by)
        return self.receive(by, keep)

    def until(
        self,
        make: Callable[[], Any],
        version: int | None,
        done: Callable[[Any], bool],
        by: str = "main",
        keep: Callable[[Any], None] | None = None,
    ) -> Any:
        """Ask until the answer is as wanted; only that one is compared."""

        def check() -> bool:
            before = len(self.said)
            answer = self.ask(make(), version, by, keep)
            if done(answer):
                return True
            del self.said[before:]
            return False

        until(check, "an answer as wanted")
        return self.said[-1].answer

    def silently(self, message: Any, version: int | None = None, by: str = "main") -> Any:
        """Ask without comparing the answer."""
        before = len(self.said)
        answer = self.ask(message, version, by)
        del self.said[before:]
        return answer

    def topic(self, word: str = "topic", partitions: int = 2, **configs: str) -> str:
        """Create a topic, known on both sides by its name; returns the name."""
        name = self.name(word)
        topic = CreateTopicsRequest.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[
                CreateTopicsRequest.CreatableTopicConfig(name=key.replace("_", "."), value=value)
                for key, value in configs.items()
            ],
        )
        (made,) = self.silently(CreateTopicsRequest(topics=[topic])).topics
        assert made.error_code == 0, made
        self.call(made.topic_id, f"id of {name}")
        make = ListOffsetsRequest.ListOffsetsPartition
        ends = [make(partition_index=index, timestamp=-1) for index in range(partitions)]
        asked = ListOffsetsRequest(topics=[ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=ends)])

        def led() -> bool:
            (found,) = self.silently(asked, 7).topics
            return not any(part.error_code for part in found.partitions)

        until(led, f"{name} has leaders")
        return name

    def id_of(self, topic: str) -> uuid.UUID:
        """A topic's id."""
        asked = MetadataRequest.MetadataRequestTopic(name=topic)
        answer = self.silently(MetadataRequest(topics=[asked], allow_auto_topic_creation=False))
        found: uuid.UUID = answer.topics[0].topic_id
        return found

    def produce(
        self, topic: str, partition: int, *values: bytes, transactional: str | None = None, **facts: Any
    ) -> None:
        """Append a batch of these values, which must succeed; timestamps count from 1,000,000 ms."""
        records = [BatchRecord(0, 1_000_000 + n, None, value) for n, value in enumerate(values)]
        batch = build_batch(records, transactional=transactional is not None, **facts)
        part = ProduceRequest.PartitionProduceData(index=partition, records=batch)
        data = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
        asked = ProduceRequest(transactional_id=transactional, acks=-1, timeout_ms=10_000, topic_data=[data])
        answer = self.silently(asked, 11).responses[0].partition_responses[0]
        assert answer.error_code == 0, answer

    def transcript(self) -> list[tuple[str, Any, str]]:
        """Return this side's answers, in terms that both sides share."""
        return [(said.label, self._plain(said.answer, ""), said.on_purpose) for said in self.said]

    def _plain(self, value: Any, field: str) -> Any:
        if isinstance(value, Struct):
            return {
                f.name: self._plain(getattr(value, f.name), f.name) for f in value.FIELDS if f.name not in NOT_COMPARED
            }
        if isinstance(value, list):
            plain = [self._plain(item, field) for item in value]
            return plain if field in ORDERED else sorted(plain, key=_key)
        if isinstance(value, uuid.UUID):
            return self._names.get(str(value), "<no id>" if value.int == 0 else "<unknown id>")
        if isinstance(value, str):
            for known in sorted(self._names, key=len, reverse=True):
                value = value.replace(known, self._names[known])
            return _UUID.sub("<uuid>", value).replace(self.address, "<address>")
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value).hex()
        if field.endswith("error_code"):
            return ErrorCode.of(value).name
        if field.endswith("producer_id"):
            return self._numbers.get(value, value)
        return value

    def close(self) -> None:
        """Let go of the connections."""
        for client in self._clients.values():
            client.close()


def _key(value: Any) -> tuple[str, ...]:
    if not isinstance(value, dict):
        return (f"{value:06d}" if isinstance(value, int) else str(value),)
    named = [value[key] for key in KEYS if key in value]
    return (*(f"{event:06d}" if isinstance(event, int) else str(event) for event in named), repr(value))


def fit(value: Any, version: int) -> None:
    """Give the fields that a version does not have their defaults."""
    for field in value.FIELDS:
        if not field.is_in_version(version):
            setattr(value, field.name, field.fresh_default())
            continue
        inner = getattr(value, field.name)
        for event in inner if isinstance(inner, list) else [inner]:
            if isinstance(event, Struct):
                fit(event, version)


Scenario = Callable[[Side, int], None]
SCENARIOS: dict[str, tuple[Scenario, tuple[int, ...]]] = {}


def scenario(*versions: type | int) -> Callable[[Scenario], Scenario]:
    """Register a scenario for these versions, or for all versions of a request's class."""

    def register(run: Scenario) -> Scenario:
        numbers: list[int] = []
        for version in versions:
            numbers += [version] if isinstance(version, int) else _range(version)
        name = f"{run.__module__.rpartition('.')[2]}.{run.__name__}"
        assert name not in SCENARIOS
        SCENARIOS[name] = (run, tuple(numbers) or (0,))
        return run

    return register


def _range(cls: Any) -> Iterable[int]:
    return range(cls.MIN_VERSION, cls.MAX_VERSION + 1)


def differences(theirs: Any, ours: Any, path: str = "") -> Iterator[str]:
    """Where two plain values differ, as `path: theirs | ours`."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in theirs:
            yield from differences(theirs[key], ours.get(key), f"{path}.{key}" if path else key)
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for number, (left, right) in enumerate(zip(theirs, ours, strict=True)):
            yield from differences(left, right, f"{path}[{number}]")
    elif theirs != ours:
        yield f"{path}: Kafka {theirs!r} | ours {ours!r}"


_runs = itertools.count(1)


def compare(name: str, version: int, kafka: str, ours: str) -> list[str]:
    """Run one scenario on both sides.

    Returns:
        The differences, empty when there are none.
    """
    run, _ = SCENARIOS[name]
    prefix = f"{name.replace('.', '-').replace('_', '-')}-{version}-{next(_runs)}"
    transcripts = []
    for address in (kafka, ours):
        side = Side(address, prefix)
        try:
            run(side, version)
            transcripts.append(side.transcript())
        finally:
            side.close()
    return differences_of(*transcripts)


def differences_of(theirs: list[tuple[str, Any, str]], mine: list[tuple[str, Any, str]]) -> list[str]:
    found, reasons, differing = [], set(), set()
    for number, pair in enumerate(itertools.zip_longest(theirs, mine, fillvalue=("nothing", None, ""))):
        (label, left, reason), (other, right, _) = pair
        if label != other:
            found.append(f"#{number} {label} at Kafka, {other} at ours")
            break
        apart = [f"#{number} {label}: {difference}" for difference in differences(left, right)]
        if reason:
            reasons.add(reason)
            differing |= {reason} if apart else set()
        else:
            found += apart
    return found + [f"on purpose, but no difference: {reason}" for reason in sorted(reasons - differing)]


def ready(address: str) -> None:
    """Wait until every coordinator of a broker answers."""
    side = Side(address, "ready")
    try:
        for number in range(24):
            name = f"ready-{number}"

            def group_ready(name: str = name) -> bool:
                side.silently(FindCoordinatorRequest(key_type=0, coordinator_keys=[name]))
                return side.silently(DescribeGroupsRequest(groups=[name]), 5).groups[0].error_code not in _NOT_READY

            def transaction_ready(name: str = name) -> bool:
                side.silently(FindCoordinatorRequest(key_type=1, coordinator_keys=[name]))
                asked = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
                return side.silently(asked, 4).error_code not in _NOT_READY

            until(group_ready, f"the coordinator of group {name}")
            until(transaction_ready, f"the coordinator of transactions {name}")
    finally:
        side.close()
