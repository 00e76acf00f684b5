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
from kohort.region.record_codec import encode_fact_key
from kohort.region.records import (
    Contribution,
    EpochBegun,
    Fact,
    GroupClaim,
    InitialOffset,
    InitialTopics,
    Manifest,
    Part,
    Position,
    PublishedCheckpoint,
    RegionCreated,
    RegionStopped,
    StoppedMembers,
    TermBegun,
    groups_reserved_by_states,
    staged_keys_by_sink,
    to_part,
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


def region_partition(region: str, partitions: int) -> int:
    """Return the partition of `__kohort_regions` that has a region's records: by the CRC-32 (ISO-HDLC) of its name.

    Partition 0 is left out: it has the claims of consumer groups.

    Args:
        region: the region's name.
        partitions: the number of partitions of the topic.
    """
    return 1 + zlib.crc32(region.encode()) % (partitions - 1)


def ensure_regions_topic(servers: Servers, settings: Mapping[str, Any]) -> int:
    """Create `__kohort_regions` as a compacted topic, or check the existing one; return the number of its partitions.

    Raises:
        InvalidInputError: the topic's `cleanup.policy` is not exactly `compact`, or it has only one partition; or
            separate kohort coordinators serve the cluster's groups.
        NotAuthorizedError: no permission to describe the topic, or to create it if it is missing.
        TimedOutError: the topic was created and does not appear.
    """
    return _checked(servers, settings, creates=True)


def check_regions_topic(servers: Servers, settings: Mapping[str, Any]) -> int:
    """Check `__kohort_regions` without creating it; return the number of its partitions, 0 if it does not exist.

    Raises:
        InvalidInputError: the topic's `cleanup.policy` is not exactly `compact`, or it has only one partition; or
            separate kohort coordinators serve the cluster's groups.
        NotAuthorizedError: no permission to describe the topic.
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
    """Refuse a cluster whose groups are coordinated by separate kohort processes.

    A region commits group offsets and its manifest in one transaction, and these coordinators take no part in it.
    """
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
    """The valid records of one region in `__kohort_regions`, the newest of each key.

    Attributes:
        birth: the record that created the region; None: there is no region.
        term: the newest control plane's term and address.
        epoch: the epoch of the members, which grows with each start and reset.
        stopped: the last stop for an operator, or with an empty cause the last resume; None: neither has happened.
        stopped_members: the incarnations of members that an operator has stopped, by name.
        initial: the offset at which the region began to read each partition.
        began: for each group, the topics that its pattern matched when it began.
        manifests: the manifests of the last complete checkpoints, by sequence.
        contributions: the members' acknowledgements of checkpoints, by sequence and member.
        shown: the last sequence that each sink is known to have published.
        ignored_because: why the records of a region without a `RegionCreated` are ignored; empty: there are none.
    """

    birth: RegionCreated | None = None
    term: TermBegun | None = None
    epoch: EpochBegun | None = None
    stopped: RegionStopped | None = None
    stopped_members: dict[str, UUID] = field(default_factory=dict)
    initial: dict[Part, InitialOffset] = field(default_factory=dict)
    began: dict[str, tuple[str, ...]] = field(default_factory=dict)
    manifests: dict[int, Manifest] = field(default_factory=dict)
    contributions: dict[int, dict[str, Contribution]] = field(default_factory=dict)
    shown: dict[str, PublishedCheckpoint] = field(default_factory=dict)
    ignored_because: str = ""

    @property
    def last_complete_sequence(self) -> int:
        """The sequence (checkpoint number) of the last complete checkpoint; 0: none."""
        return max(self.manifests, default=0)

    def refuse_if_all_ignored(self, region: str) -> None:
        """Raise an error if the topic has records under this region's name, and none is valid by this process's key.

        Otherwise a second region of the same name would be created.

        Raises:
            InvalidInputError: all records are ignored; the message says what to do.
        """
        if self.birth is None and self.ignored_because:
            raise InvalidInputError(
                f"{TOPIC} has records of region {region!r}, and all are ignored: the last {self.ignored_because}. Give "
                f"all its processes the region's key (${KEY_VARIABLE}, or key=). If they are of an earlier release or "
                f"of a stranger, delete them: `kohort region delete {region} --execute`. If the key is lost and you "
                f"trust them: `kohort region reseal {region} --execute`"
            )

    def add(self, fact: Fact) -> None:
        """Apply the next valid record of the region, in the order of the log; it replaces an earlier one of its key."""
        match fact:
            case RegionCreated():
                self.birth = fact
            case TermBegun():
                self.term = fact
            case EpochBegun():
                self.epoch = fact
            case RegionStopped():
                self.stopped = fact
            case StoppedMembers():
                self.stopped_members = fact.members
            case InitialOffset():
                self.initial[to_part(fact)] = fact
            case InitialTopics():
                self.began[fact.group] = fact.topics
            case Manifest():
                self.manifests[fact.sequence] = fact
            case Contribution():
                self.contributions.setdefault(fact.sequence, {})[fact.member] = fact
            case PublishedCheckpoint():
                self.shown[fact.place] = fact
            case GroupClaim():
                pass

    def application_states(self) -> dict[str, bytes]:
        """Return each member's saved application state (`state` of its acknowledgement), by member.

        The result has the members of the last checkpoint, and absent members whose return the region waits for.
        """
        last = self.manifests.get(self.last_complete_sequence)
        if last is None:
            return {}
        at = {**last.away, **dict.fromkeys(last.members, last.sequence)}
        given = {name: self.contributions.get(sequence, {}).get(name) for name, sequence in at.items()}
        return {name: contribution.state for name, contribution in given.items() if contribution is not None}

    def adoption_history(self, region: str) -> AdoptionHistory:
        """Return the records that `RegionLogView.adopt` needs: the last checkpoint, or the region's start offsets."""
        assert self.birth is not None
        known = self.to_region_facts(region, 0)
        last = self.manifests.get(self.last_complete_sequence)
        term = 0 if self.term is None else self.term.term
        if last is None:
            began = tuple(
                Position(at.group, at.topic, at.topic_id, at.partition, at.offset, at.leader_epoch)
                for _, at in sorted(self.initial.items())
            )
            last = Manifest(region, self.birth.region_id, 0, term, 0, 0, (), (), began)
        given = self.contributions.get(self.last_complete_sequence, {})
        return AdoptionHistory(
            last,
            tuple(given[name] for name in last.members if name in given),
            known.unpublished_keys(),
            self.shown,
            self.epoch or EpochBegun(region, 0, term, 0, 0, "", 0),
        )

    def to_region_facts(self, region: str, term: int, region_id: UUID | None = None) -> RegionFacts:
        """Return the state with which a control plane begins this term: that of the last complete checkpoint.

        `region_id` is needed only for a region that has no `RegionCreated` record yet.
        """
        if region_id is None:
            assert self.birth is not None
            region_id = self.birth.region_id
        last = self.manifests.get(self.last_complete_sequence)
        given = self.contributions.get(self.last_complete_sequence, {})
        contributions = [given[name] for name in (last.members if last is not None else ()) if name in given]
        away = {} if last is None else last.away
        waiting = {
            contribution.member: self.last_complete_sequence for contribution in contributions if contribution.keeps
        } | away
        waited_for = [self.contributions.get(sequence, {}).get(name) for name, sequence in waiting.items()]
        return RegionFacts(
            region,
            region_id,
            term,
            epoch=0 if self.epoch is None else self.epoch.epoch,
            floor=0 if self.epoch is None else self.epoch.floor,
            sequence=self.last_complete_sequence,
            consecutive=0 if self.epoch is None else self.epoch.consecutive,
            expected=frozenset(last.stay) if last is not None else frozenset(),
            processes={
                contribution.member: contribution.process for contribution in contributions if contribution.process
            },
            initial=tuple(self.initial.values()),
            positions=last.positions if last is not None else (),
            keys=staged_keys_by_sink(contributions),
            places=() if last is None else last.places,
            states=self.application_states(),
            contributors={contribution.member: contribution.epoch for contribution in contributions},
            waiting=waiting,
            reserved=groups_reserved_by_states(contribution for contribution in waited_for if contribution is not None),
            empties=last is not None and last.empties,
            made_as=0 if last is None else last.made_as,
            stopped="" if self.stopped is None else self.stopped.cause,
            stopped_members=dict(self.stopped_members),
            shown=dict(self.shown),
            began=dict(self.began),
        )


class TopicReader:
    """A read_committed reader of one partition of `__kohort_regions`. Thread-safe: calls are serialised."""

    def __init__(
        self, servers: Servers, settings: Mapping[str, Any], partition: int, key: RegionKey, region: str
    ) -> None:
        """Initialise the reader of one partition; the first call connects.

        `region` is the region whose process reads; empty: an operator's command reads all regions.
        """
        self.partition = TopicPartition(TOPIC, partition)
        self.table = FactTable(key, region)
        self._lock = threading.Lock()
        own = {"isolation_level": "read_committed", "default_api_timeout_ms": int(READ_S * 1000)}
        given = servers if isinstance(servers, str) else list(servers or ())
        self._reader = RangeReader(given, fetch_bytes=_FETCH_BYTES, **{**settings, **own})
        self._ignored = IgnoredRecordLog(str(self.partition))
        self._at = 0

    def read_all_facts(self) -> list[Fact]:
        """Read on to the partition's present end, and return all current valid records (facts) in the order of the log.

        Records that later ones have replaced are left out.

        Raises:
            TimedOutError: a transaction stays open.
            KafkaError: the topic can't be read.
        """
        with self._lock:
            for _ in self._advance():
                pass  # those that others have replaced are not kept: the log has thousands of them
            return self.table.facts_in_log_order()

    def group_claim_keys(self, region: str) -> list[bytes]:
        """Read on to the partition's present end; return the keys of a region's claims of groups, ignored ones too."""
        with self._lock:
            for _ in self._advance():
                pass
            return self.table.group_claim_keys(region)

    def read_new_facts(self) -> list[Fact]:
        """Read on to the partition's present end; return the valid records (facts) since the last call that read.

        Records that later ones have replaced are included.

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


def facts_of_region(
    region: str, facts: list[Fact], ignored_because: Mapping[str, str] = MappingProxyType({})
) -> SavedFacts:
    """Return the records of one region among the records of a partition, which several regions may share.

    Args:
        region: the region's name.
        facts: the partition's valid records, in the order of the log.
        ignored_because: why the records of regions were ignored, by region.
    """
    saved = SavedFacts(ignored_because=ignored_because.get(region, ""))
    for fact in facts:
        if not isinstance(fact, GroupClaim) and fact.region == region:
            saved.add(fact)
    return saved


def owning_claim(group: str, facts: list[Fact]) -> GroupClaim | None:
    """Return the claim that decides which region owns a consumer group: the first in the log; None: there is none."""
    return next((fact for fact in facts if isinstance(fact, GroupClaim) and fact.group == group), None)


def group_claim_key(group: str, region: str) -> bytes:
    """Return the key of the record by which a region claims a consumer group."""
    return encode_fact_key(GroupClaim(group, region, "", 0))


def is_member_client_id(region: str, client_id: str) -> bool:
    """Return whether a Kafka client id names a member of this region, perhaps a dead one that is still in its group."""
    return client_id.startswith(member_client_id(region, ""))


def region_transactional_id(region: str) -> str:
    """Return the transactional id that all control planes of a region use, so that a new one fences the one before."""
    return f"kohort-region-{region}"


def member_client_id(region: str, member: str) -> str:
    """Return the Kafka client id of a region's member, `REGION/MEMBER`. A region's name never contains a `/`."""
    return f"{region}/{member}"
