"""The topic `__kohort_regions`: its creation, its checks and its reader.

Partition 0 has the claims of groups. The facts of a region are in one of the others, by its name. Readers of a region
thus rarely wait for another region's open transaction. Source: spec 5.1, 5.3.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from uuid import UUID

from kohort.client.admin.admin import Admin
from kohort.client.admin.values import ConfigResource, NewTopic, ResourceType
from kohort.client.consumer.range_reader import RangeReader
from kohort.client.net.thread_driver import ThreadClient
from kohort.client.settings import ConnectionConfig, Servers, client_config
from kohort.errors import ErrorCode, InvalidInputError, KafkaError, NotAuthorizedError, TimedOutError
from kohort.ids import TopicPartition
from kohort.region.agreement import AdoptionHistory
from kohort.region.control_plane.state import RegionFacts
from kohort.region.fact_table import FactTable, IgnoredRecordLog, StoredRecord, apply_valid_records
from kohort.region.record_codec import key_of
from kohort.region.records import (
    Began,
    Birth,
    Claim,
    Contribution,
    Epoch,
    Fact,
    Initial,
    Manifest,
    Part,
    Position,
    Shown,
    Stopped,
    Term,
    groups_reserved_by_states,
    part_of,
    staged_keys_by_sink,
)
from kohort.region.region_key import KEY_VARIABLE, SEAL, RecordAuthor, RegionKey

TOPIC = "__kohort_regions"
PARTITIONS = 9
SEGMENT_BYTES = 16 * 1024 * 1024
"""Only full segments are compacted, and each start reads the topic: this is two hours of a checkpoint each second."""
CLAIMS = 0
READ_S = 30.0
"""Timeout in seconds for reading to the end: an open transaction of another region ends after ten seconds."""
_FETCH_BYTES = 1 << 20
"""Bytes of a fetch: three are held, and a member keeps its reader. The log of two hours is read in sixteen."""


def partition_of(region: str, partitions: int) -> int:
    """Return the partition of a region's facts: by the CRC-32 (ISO-HDLC) of its name, so it never changes."""
    return 1 + zlib.crc32(region.encode()) % (partitions - 1)


def make_or_check(servers: Servers, settings: Mapping[str, Any]) -> int:
    """Create the topic, compacted, or check it; return the number of its partitions.

    Raises:
        InvalidInputError: it exists and is not compacted, or has one partition; or kohort's coordinators keep the
            groups apart from the cluster.
        NotAuthorizedError: no permission to describe it, or to create it if it is missing.
    """
    return _checked(servers, settings, creates=True)


def check_topic(servers: Servers, settings: Mapping[str, Any]) -> int:
    """Check the topic, and create nothing; return the number of its partitions, 0 if it is missing.

    Raises:
        InvalidInputError: as `make_or_check`.
        NotAuthorizedError: no permission to describe it.
    """
    return _checked(servers, settings, creates=False)


def _checked(servers: Servers, settings: Mapping[str, Any], *, creates: bool) -> int:
    _refuse_coordinators(servers, settings)
    with Admin(servers, **settings) as admin:
        found = _describe(admin)
        if found is None and not creates:
            return 0
        if found is None:
            try:
                configs = {"cleanup.policy": "compact", "segment.bytes": str(SEGMENT_BYTES)}
                admin.create_topics([NewTopic(TOPIC, PARTITIONS, configs=configs)]).all()
            except NotAuthorizedError as error:
                raise NotAuthorizedError(
                    f"regions keep what they know in {TOPIC}, which is not there: {error}"
                ) from error
            except KafkaError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
            until_s = time.monotonic() + READ_S
            while (found := _describe(admin)) is None and time.monotonic() < until_s:
                time.sleep(0.05)
        if found is None:
            raise TimedOutError(f"{TOPIC} was created and does not appear")
        resource = ConfigResource(ResourceType.TOPIC, TOPIC)
        policy = admin.describe_configs([resource]).result(resource)["cleanup.policy"].value
    if policy != "compact":
        raise InvalidInputError(f"{TOPIC} has cleanup.policy={policy}: a region needs compact, and nothing else")
    if found < 2:
        raise InvalidInputError(f"{TOPIC} has one partition: claims need one, and regions at least another")
    return found


def _refuse_coordinators(servers: Servers, settings: Mapping[str, Any]) -> None:
    """Refuse a cluster with separate coordinators: group offsets and manifest could not share a transaction there."""
    client = ThreadClient(client_config(ConnectionConfig, servers, dict(settings)))
    try:
        client.call(client.cluster.refresh_metadata())
        apart = client.cluster.connections.apart
    finally:
        client.close()
    if apart:
        raise InvalidInputError(
            "a region can't be where kohort's coordinators keep the groups of a Kafka cluster: it commits its manifest "
            "and its groups' offsets in one transaction, which they take no part in. Give bootstrap_servers of Kafka's "
            "own brokers, for groups that no coordinator of kohort's serves"
        )


def _describe(admin: Admin) -> int | None:
    try:
        return len(admin.describe_topics([TOPIC]).result(TOPIC).partitions)
    except KafkaError as error:
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return None
        raise


@dataclass(slots=True)
class SavedFacts:
    """The facts of one region in the topic.

    Attributes:
        began: for each group, the topics that its pattern matched when it began.
        manifests: by sequence; contributions by sequence and member.
        shown: the last sequence that each sink is known to show.
        ignored_because: why the records of a region without a `Birth` are ignored; empty: there are none.
    """

    birth: Birth | None = None
    term: Term | None = None
    epoch: Epoch | None = None
    stopped: Stopped | None = None
    initial: dict[Part, Initial] = field(default_factory=dict)
    began: dict[str, tuple[str, ...]] = field(default_factory=dict)
    manifests: dict[int, Manifest] = field(default_factory=dict)
    contributions: dict[int, dict[str, Contribution]] = field(default_factory=dict)
    shown: dict[str, Shown] = field(default_factory=dict)
    ignored_because: str = ""

    @property
    def sequence(self) -> int:
        """The last complete sequence; 0: none."""
        return max(self.manifests, default=0)

    def refuse_only_ignored(self, region: str) -> None:
        """Refuse to create a region if the topic has records of that name, none of them valid under this key.

        Raises:
            InvalidInputError: so it is; the message says what to do.
        """
        if self.birth is None and self.ignored_because:
            raise InvalidInputError(
                f"{TOPIC} has records of region {region!r}, and all are ignored: the last {self.ignored_because}. Give "
                f"all its processes the region's key (${KEY_VARIABLE}, or key=). If they are of an earlier release or "
                f"of a stranger, delete them: `kohort region delete {region} --execute`. If the key is lost and you "
                f"trust them: `kohort region reseal {region} --execute`"
            )

    def add(self, fact: Fact) -> None:
        """Apply a fact that was read from the region's topic; facts come in the order of the log."""
        match fact:
            case Birth():
                self.birth = fact
            case Term():
                self.term = fact
            case Epoch():
                self.epoch = fact
            case Stopped():
                self.stopped = fact
            case Initial():
                self.initial[part_of(fact)] = fact
            case Began():
                self.began[fact.group] = fact.topics
            case Manifest():
                self.manifests[fact.sequence] = fact
            case Contribution():
                self.contributions.setdefault(fact.sequence, {})[fact.member] = fact
            case Shown():
                self.shown[fact.place] = fact
            case Claim():
                pass

    def states(self) -> dict[str, bytes]:
        """Return the states from which members continue.

        Those of the last sequence, and those that wait for absent members.
        """
        last = self.manifests.get(self.sequence)
        if last is None:
            return {}
        at = {**last.away, **dict.fromkeys(last.members, last.sequence)}
        given = {name: self.contributions.get(sequence, {}).get(name) for name, sequence in at.items()}
        return {name: contribution.state for name, contribution in given.items() if contribution is not None}

    def history(self, region: str) -> AdoptionHistory:
        """Return the facts that adopting a sink needs."""
        assert self.birth is not None
        known = self.known(region, 0)
        last = self.manifests.get(self.sequence)
        term = 0 if self.term is None else self.term.term
        if last is None:
            began = tuple(
                Position(at.group, at.topic, at.topic_id, at.partition, at.offset, at.leader_epoch)
                for _, at in sorted(self.initial.items())
            )
            last = Manifest(region, self.birth.region_id, 0, term, 0, 0, (), (), began)
        given = self.contributions.get(self.sequence, {})
        return AdoptionHistory(
            last,
            tuple(given[name] for name in last.members if name in given),
            known.unpublished(),
            self.shown,
            self.epoch or Epoch(region, 0, term, 0, 0, "", 0),
        )

    def known(self, region: str, term: int, region_id: UUID | None = None) -> RegionFacts:
        """Return the facts with which a control plane of this term begins.

        `region_id` is that of a region without a `Birth`.
        """
        if region_id is None:
            assert self.birth is not None
            region_id = self.birth.region_id
        last = self.manifests.get(self.sequence)
        given = self.contributions.get(self.sequence, {})
        contributions = [given[name] for name in (last.members if last is not None else ()) if name in given]
        away = {} if last is None else last.away
        waiting = {contribution.member: self.sequence for contribution in contributions if contribution.keeps} | away
        waited_for = [self.contributions.get(sequence, {}).get(name) for name, sequence in waiting.items()]
        return RegionFacts(
            region,
            region_id,
            term,
            epoch=0 if self.epoch is None else self.epoch.epoch,
            floor=0 if self.epoch is None else self.epoch.floor,
            sequence=self.sequence,
            consecutive=0 if self.epoch is None else self.epoch.consecutive,
            expected=frozenset(last.stay) if last is not None else frozenset(),
            processes={
                contribution.member: contribution.process for contribution in contributions if contribution.process
            },
            initial=tuple(self.initial.values()),
            positions=last.positions if last is not None else (),
            keys=staged_keys_by_sink(contributions),
            places=() if last is None else last.places,
            states=self.states(),
            contributors={contribution.member: contribution.epoch for contribution in contributions},
            waiting=waiting,
            reserved=groups_reserved_by_states(contribution for contribution in waited_for if contribution is not None),
            empties=last is not None and last.empties,
            made_as=0 if last is None else last.made_as,
            stopped="" if self.stopped is None else self.stopped.cause,
            shown=dict(self.shown),
            began=dict(self.began),
        )


class TopicReader:
    """The reader of one partition of the topic. Any thread may call its methods; calls are serialised."""

    def __init__(
        self, servers: Servers, settings: Mapping[str, Any], partition: int, key: RegionKey, region: str
    ) -> None:
        """Initialise the reader of a region's application; an empty name: of an operator who reads all regions."""
        self.partition = TopicPartition(TOPIC, partition)
        self.table = FactTable(key, region)
        self._lock = threading.Lock()
        own = {"isolation_level": "read_committed", "default_api_timeout_ms": int(READ_S * 1000)}
        given = servers if isinstance(servers, str) else list(servers or ())
        self._reader = RangeReader(given, fetch_bytes=_FETCH_BYTES, **{**settings, **own})
        self._ignored = IgnoredRecordLog(str(self.partition))
        self._at = 0

    def follow(self) -> list[Fact]:
        """Return all current facts, in the order of the log, up to the current end.

        Raises:
            TimedOutError: a transaction stays open.
            KafkaError: the topic can't be read.
        """
        with self._lock:
            for _ in self._advance():
                pass  # those that others have replaced are not kept: the log has thousands of them
            return self.table.in_order()

    def advance(self) -> list[Fact]:
        """Return the facts since the last call in the order of the log, those that others have replaced too.

        Raises:
            TimedOutError: a transaction stays open.
            KafkaError: the topic can't be read.
        """
        with self._lock:
            return [*self._advance()]

    def _advance(self) -> Iterator[Fact]:
        end = self._reader.high_watermark(self.partition)
        yield from apply_valid_records(self.table, self._records(end), self._ignored)
        self._at = max(self._at, end)

    def _records(self, end: int) -> Iterator[StoredRecord]:
        for header, records in self._reader.read_batches(self.partition, self._at, end):
            author = RecordAuthor(header.producer_id, header.producer_epoch)
            for record in records:
                seal = next((bytes(value or b"") for name, value in record.headers if name == SEAL), b"")
                key, value = (None if part is None else bytes(part) for part in (record.key, record.value))
                yield StoredRecord(record.offset, author, header.is_transactional, key, value, seal)
                self._at = record.offset + 1

    def close(self) -> None:
        self._reader.close()


def saved_of(region: str, facts: list[Fact], ignored_because: Mapping[str, str] = MappingProxyType({})) -> SavedFacts:
    """Return the facts of one region; a partition may have several regions."""
    saved = SavedFacts(ignored_because=ignored_because.get(region, ""))
    for fact in facts:
        if not isinstance(fact, Claim) and fact.region == region:
            saved.add(fact)
    return saved


def first_claim(group: str, facts: list[Fact]) -> Claim | None:
    """Return the valid claim of a group: the first one."""
    return next((fact for fact in facts if isinstance(fact, Claim) and fact.group == group), None)


def claim_key(group: str, region: str) -> bytes:
    """Return the record key under which a region claims a group."""
    return key_of(Claim(group, region, "", 0))


def is_of(region: str, client_id: str) -> bool:
    """Return whether a client id belongs to a member of a region, which may be dead and not removed yet."""
    return client_id.startswith(client_id_of(region, ""))


def transactional_id_of(region: str) -> str:
    """Return the transactional id that fences a region's control planes."""
    return f"kohort-region-{region}"


def client_id_of(region: str, member: str) -> str:
    """Return the Kafka client id of a region member: `REGION/MEMBER`. A region's name never contains a `/`."""
    return f"{region}/{member}"
