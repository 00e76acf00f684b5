"""Reading and writing of the region's topic.

`RegionLogView` is every application's view: the control plane's address, the owner of a group. `RegionLogWriter` is the
control plane's transactional producer: a control plane that was replaced can write nothing more. Source: spec 5.1, 5.3,
5.10.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar
from uuid import UUID, uuid4

from kohort.client.admin.admin import Admin
from kohort.client.offsets import GroupMetadata, OffsetAndMetadata
from kohort.client.producer.batches import Delivery
from kohort.client.producer.producer import Producer
from kohort.client.settings import Servers
from kohort.errors import ErrorCode, FencedError, InvalidInputError, KafkaError, NotFoundError, TimedOutError
from kohort.ids import TopicPartition
from kohort.io.channel import Link
from kohort.region.agreement import records_after_adoption
from kohort.region.control_plane.events import MemberOffsets, OutsideClient
from kohort.region.control_plane.state import RegionFacts
from kohort.region.fact_table import FactTable, TrustingFactTable, seal_headers
from kohort.region.leader_election import ControlPlaneAddress
from kohort.region.record_codec import checkpoint_tombstones, key_of, value_of
from kohort.region.records import Birth, Claim, Contribution, Fact, Manifest, Part, Position, Term
from kohort.region.region_key import RecordAuthor, RegionKey, existing_key, random_key, region_key
from kohort.region.region_topic import (
    CLAIMS,
    TOPIC,
    SavedFacts,
    TopicReader,
    check_topic,
    claim_key,
    first_claim,
    is_of,
    make_or_check,
    partition_of,
    saved_of,
    transactional_id_of,
)
from kohort.region.server import FINAL, OffsetsRefusal, RegionLog, TermOverError, UnknownOutcomeError

log = logging.getLogger("kohort.region")
T = TypeVar("T")

TRANSACTION_MS = 10_000
"""Timeout of a transaction in ms. An open one blocks readers of its partition, at most this long if its control plane
sleeps."""
KEPT = 2
"""Number of complete sequences that are kept."""
BEGIN_S = 30.0
BEGIN_ATTEMPTS = 3
"""Attempts to begin a term whose outcome is unknown. Retries are immediate: an open transaction blocks all who look
for one."""
_OVER = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED)
_GONE = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class RegionLogView:
    """One application's view of its region's topic. Any thread may call its methods.

    Reading creates nothing. The topic, and the machine's key, are created by what writes.
    """

    def __init__(
        self, region: str, servers: Servers, settings: Mapping[str, Any], key: RegionKey | None = None
    ) -> None:
        """Initialise the view; the first call connects. Without a key, the environment's or the machine's is used."""
        self._unsealed = random_key()
        self._region, self._servers, self._settings = region, servers, dict(settings)
        self._given = key
        self._lock = threading.Lock()
        self._readers: dict[tuple[int, str], TopicReader] = {}
        self._partitions = 0

    @cached_property
    def _key(self) -> RegionKey:
        return region_key() if self._given is None else self._given

    def _reading_key(self) -> RegionKey:
        """Return the key that authenticates the records read. While there is none, every record is ignored."""
        found = self.__dict__.get("_key") or self._given or existing_key()
        return self._unsealed if found is None else found

    def token(self, term: int) -> bytes:
        """Return the shared secret of a term, which both ends of a control plane connection prove to each other."""
        return self._key.token(self._region, term)

    def partitions(self) -> int:
        """Return the number of the topic's partitions; the topic is created if it is missing."""
        with self._lock:
            if not self._partitions:
                self._partitions = make_or_check(self._servers, self._settings)
            return self._partitions

    def found_partitions(self) -> int:
        """Return the number of the topic's partitions; 0: there is no topic."""
        with self._lock:
            if not self._partitions:
                self._partitions = check_topic(self._servers, self._settings)
            return self._partitions

    def follow(self, partition: int | None = None) -> list[Fact]:
        """Read the current facts in a partition of the topic up to its end; None: in the region's own partition."""
        return self.reader(partition).follow() if self.found_partitions() else []

    def reader(self, partition: int | None = None) -> TopicReader:
        """Return the reader of a partition of the topic; None: of the region's own partition.

        Raises:
            NotFoundError: there is no topic.
        """
        partitions = self.found_partitions()
        if not partitions:
            raise NotFoundError(f"there is no topic {TOPIC}: no region has begun")
        with self._lock:
            key = self._reading_key()
            number = partition_of(self._region, partitions) if partition is None else partition
            if (number, key.name) not in self._readers:
                self._readers[number, key.name] = TopicReader(self._servers, self._settings, number, key, self._region)
            return self._readers[number, key.name]

    def saved(self) -> SavedFacts:
        """Return the region's current facts.

        Raises:
            InvalidInputError: the topic has records of the region, and none is valid by this process's key.
        """
        if not self.found_partitions():
            return SavedFacts()
        reader = self.reader()
        saved = saved_of(self._region, reader.follow(), reader.table.ignored_because)
        saved.refuse_only_ignored(self._region)
        return saved

    def newest_address(self) -> ControlPlaneAddress | None:
        """Return the address of the newest term; None: there was no term yet."""
        term = self.saved().term
        if term is None:
            return None
        return ControlPlaneAddress(term.term, term.host, term.port, self.token(term.term), term.pin)

    def region_id(self, reach: Callable[[], Link]) -> UUID:
        """Return the region's id, after a control plane has been reached, which creates it.

        Raises:
            TimedOutError: no control plane can be reached.
        """
        until_s = time.monotonic() + BEGIN_S
        while True:
            try:
                reach().close()
                break
            except FINAL:
                raise
            except (OSError, KafkaError) as error:
                if time.monotonic() > until_s:
                    raise TimedOutError(f"region {self._region} has no control plane: {error}") from error
                time.sleep(0.1)
        birth = self.saved().birth
        if birth is None:
            raise TimedOutError(f"region {self._region} has a control plane and no beginning")
        return birth.region_id

    # -- groups

    def check_group(self, group: str) -> None:
        """Check that a group can be the region's, without claiming it.

        Raises:
            InvalidInputError: the group is another region's, or clients outside the region read in it.
        """
        claimed = first_claim(group, self.follow(CLAIMS))
        if claimed is not None:
            self._refuse_claimed(claimed)
        with Admin(self._servers, **self._settings) as admin:
            try:
                found = admin.describe_consumer_groups([group]).result(group)
            except KafkaError as error:
                if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
                    return
                raise
        others = [member for member in found.members if not is_of(self._region, member.client_id)]
        if others:
            who = ", ".join(f"{member.client_id or member.member_id} at {member.host}" for member in others[:5])
            raise InvalidInputError(
                f"group {group!r} has members that are not of region {self._region!r}: {who}; "
                "stop them, or give the region a group of its own"
            )

    def claim(self, group: str) -> None:
        """Claim a group for the region.

        Raises:
            InvalidInputError: the group is another region's.
        """
        self._refuse_claimed(first_claim(group, self.follow(CLAIMS)) or self._claim_group(group))

    def _refuse_claimed(self, claimed: Claim) -> None:
        if claimed.region != self._region:
            raise InvalidInputError(
                f"group {claimed.group!r} belongs to region {claimed.region!r} (claimed by {claimed.application}): "
                f"use another group, or delete that region"
            )

    def _claim_group(self, group: str) -> Claim:
        mine = Claim(group, self._region, f"{socket.gethostname()}, process {os.getpid()}", _now_ms())
        self._put(key_of(mine), value_of(mine))
        first = first_claim(group, self.follow(CLAIMS))
        if first is not None and first.region != self._region:
            self._put(claim_key(group, self._region), None)
        return first or mine

    def _put(self, key: bytes, value: bytes | None) -> None:
        """Write a claim or its tombstone under a transactional id of its own, so as not to fence the control plane."""
        self.partitions()
        own = {"transactional_id": f"{transactional_id_of(self._region)}/claim-{uuid4().hex}", "linger_ms": 0}
        with Producer(self._servers, **{**self._settings, **own}) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            headers = seal_headers(
                self._key, self._region, RecordAuthor(producer.producer_id, producer.epoch), key, value
            )
            sent = producer.send(TOPIC, value, key, partition=CLAIMS, headers=headers)
            sent.result()
            producer.commit_transaction()

    def release_claims(self) -> None:
        """Release all groups of the region."""
        for fact in self.follow(CLAIMS):
            if isinstance(fact, Claim) and fact.region == self._region:
                self._put(key_of(fact), None)

    def adopt(self, place: str, was: str, shows: int) -> None:
        """Continue from the sequence that a sink shows (`records_after_adoption`). No application may serve the region.

        Raises:
            TermOverError: a control plane has begun meanwhile.
        """
        writer = self._new_writer()
        try:
            writer.adopt(place, was, shows)
        finally:
            writer.close()

    def delete(self) -> None:
        """Delete the region's records in its topic, and release its consumer groups. Rows in its sinks stay.

        Raises:
            TermOverError: a control plane has begun a term meanwhile.
        """
        writer = self._new_writer()
        try:
            writer.delete_region()
        finally:
            writer.close()
        self.release_claims()

    def reseal(self) -> int:
        """Trust the topic's records of the region, whichever key sealed them, and seal them with this process's key.

        No application serves the region. For a key that was lost or replaced.

        Returns:
            The number of records.

        Raises:
            TermOverError: a control plane has begun meanwhile.
        """
        writer = self._new_writer(TrustingFactTable(self._key, self._region))
        try:
            return writer.reseal()
        finally:
            writer.close()

    def _new_writer(self, table: FactTable | None = None) -> RegionLogWriter:
        partition = partition_of(self._region, self.partitions())
        return RegionLogWriter(self._region, self._servers, self._settings, partition, self._key, table)

    # -- the control plane

    def take_over(self, host: str, port: int, pin: bytes = b"") -> tuple[RegionLog, RegionFacts]:
        """Begin a term: when this returns, no earlier control plane can write."""
        writer = self._new_writer()
        try:
            return writer, writer.begin(host, port, pin)
        except BaseException:
            writer.close()
            raise

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            for reader in self._readers.values():
                reader.close()
            self._readers.clear()


def regions(
    servers: Servers, settings: Mapping[str, Any], key: RegionKey | None = None
) -> dict[str, tuple[SavedFacts, list[str]]]:
    """Return every region in the topic: its facts and its groups, also those whose records are ignored here.

    Nothing is created: without a topic there is no region, and without a key every record is ignored.
    """
    home = RegionLogView("", servers, settings, key)
    ignored_because: dict[str, str] = {}
    facts: list[Fact] = []
    try:
        for partition in range(home.found_partitions()):
            facts += home.follow(partition)
            ignored_because |= home.reader(partition).table.ignored_because
    finally:
        home.close()
    groups: dict[str, list[str]] = {}
    for fact in facts:
        if isinstance(fact, Claim):
            first = first_claim(fact.group, facts)
            if first is not None and first.region == fact.region:
                groups.setdefault(fact.region, []).append(fact.group)
    names = sorted({fact.region for fact in facts if isinstance(fact, Birth | Claim)} | ignored_because.keys())
    return {name: (saved_of(name, facts, ignored_because), sorted(groups.get(name, ()))) for name in names}


class RegionLogWriter:
    """The writer of a control plane. One thread uses it at a time, except for `outsiders` and `check_term`."""

    def __init__(
        self,
        region: str,
        servers: Servers,
        settings: Mapping[str, Any],
        partition: int,
        key: RegionKey,
        table: FactTable | None = None,
    ) -> None:
        """Initialise the writer; `begin` connects it. Another table reads by other rules."""
        self._region, self._servers, self._settings, self._partition = region, servers, dict(settings), partition
        self._key = key
        self._reader = self._new_reader()
        if table is not None:
            self._reader.table = table
        self._stated: Term | None = None  # the newest term, and the producer that the topic knows by it
        self._stated_by = self._sent_by = -1
        self._admin: Admin | None = None
        self._producer: Producer | None = None
        self._term = 0
        self._sent: list[Delivery] = []  # in the transaction that is open
        self._members: dict[int, tuple[str, ...]] = {}
        self._waiting: set[tuple[str, int]] = set()  # contributions of sequences that are retired but for these

    def begin(self, host: str, port: int, pin: bytes = b"") -> RegionFacts:
        """Begin a new term.

        Raises:
            TermOverError: another control plane has begun one meanwhile.
            KafkaError: the topic can't be read or written, or the outcome is unknown. A new attempt continues from what
                was written.
        """
        for attempt in range(1, BEGIN_ATTEMPTS + 1):
            try:
                return self._begin_term(host, port, pin)
            except UnknownOutcomeError as error:
                if attempt == BEGIN_ATTEMPTS:
                    raise
                log.info(
                    "[region %s] unknown whether term %s has begun, reading the topic and retrying: %s",
                    self._region,
                    self._term,
                    error,
                )
        raise AssertionError("the last attempt returns or raises")

    def _begin_term(self, host: str, port: int, pin: bytes) -> RegionFacts:
        self._term = 0
        saved = self._settled()
        if self._producer is not None and (
            why := self._reader.table.other_key_reason(self._region, self._producer.producer_id)
        ):
            saved = SavedFacts(ignored_because=why)
        saved.refuse_only_ignored(self._region)
        self._term = 1 if saved.term is None else saved.term.term + 1
        term = Term(self._region, self._term, host, port, pin, _now_ms())
        self._stated, self._stated_by = term, -1  # the term itself states its producer
        facts: list[Fact] = [term]
        if saved.birth is None:
            saved.birth = Birth(self._region, uuid4(), _now_ms())
            facts.append(saved.birth)
        self._write_facts(facts)
        return saved.known(self._region, self._term)

    def _settled(self) -> SavedFacts:
        """Fence earlier producers, so that every pending write has an outcome; then return the current facts."""
        self._drop_producer()
        producer = self._new_producer()
        try:
            producer.init_transactions()
        except BaseException:
            producer.close(timeout_ms=0)
            raise
        self._producer = producer
        saved = self._followed()
        self._stated, self._stated_by = saved.term, self._reader.table.valid_producer_id(self._region)
        self._members = {sequence: manifest.members for sequence, manifest in saved.manifests.items()}
        self._waiting = {
            (name, sequence)
            for sequence, given in saved.contributions.items()
            if sequence not in saved.manifests
            for name in given
        }
        return saved

    def _new_reader(self) -> TopicReader:
        """Create the reader of the region's partition of the topic."""
        return TopicReader(self._servers, self._settings, self._partition, self._key, self._region)

    def _new_producer(self) -> Producer:
        """Create the transactional producer, which is not initialised yet."""
        own = {
            "transactional_id": transactional_id_of(self._region),
            "transaction_timeout_ms": TRANSACTION_MS,
            "linger_ms": 0,
        }
        return Producer(self._servers, **{**self._settings, **own})

    def _followed(self) -> SavedFacts:
        """Return the region's current facts; raise TermOverError if a later term has begun."""
        saved = saved_of(self._region, self._reader.follow(), self._reader.table.ignored_because)
        if self._term and saved.term is not None and saved.term.term != self._term:
            raise TermOverError(f"term {saved.term.term} has begun")
        return saved

    def check_term(self) -> None:
        """Raise `TermOverError` if a later term has begun."""
        self._followed()

    def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close(timeout_ms=0)

    # -- writing

    def save(self, facts: Iterable[Fact]) -> None:
        """Write facts, in one transaction."""
        try:
            self._write_facts(facts)
        except UnknownOutcomeError as error:
            raise TimedOutError(
                str(error)
            ) from error  # the same facts are written again, whether they were committed or not

    def _write_facts(self, facts: Iterable[Fact]) -> None:
        records = [(key_of(fact), value_of(fact)) for fact in facts]
        self._transact(lambda producer: self._send_records(producer, records))

    def commit(
        self, manifest: Manifest, contributions: tuple[Contribution, ...], offsets: tuple[MemberOffsets, ...]
    ) -> dict[str, OffsetsRefusal]:
        """Commit a sequence in one transaction, or nothing: then return why, by member."""
        records: list[tuple[bytes, bytes | None]] = [
            (key_of(contribution), value_of(contribution)) for contribution in contributions
        ]
        records.append((key_of(manifest), value_of(manifest)))
        old = [sequence for sequence in self._members if sequence <= manifest.sequence - KEPT]
        away = set(manifest.away.items())
        for sequence in old:
            here = [name for name in self._members[sequence] if (name, sequence) not in away]
            records += checkpoint_tombstones(self._region, sequence, here).items()
        for name, sequence in self._waiting - away:
            records += checkpoint_tombstones(self._region, sequence, [name]).items()
        members = [(_metadata(member_offsets), _offsets(member_offsets.positions)) for member_offsets in offsets]
        names = {member_offsets.identity.member_id: member_offsets.member for member_offsets in offsets}

        def write_sequence_records(producer: Producer) -> dict[str, OffsetsRefusal]:
            self._send_records(producer, records)
            refused = producer.send_offsets_of_members(members) if members else {}
            return {
                names[member_id]: OffsetsRefusal(str(error), error.code in _GONE)
                for member_id, error in refused.items()
            }

        refused = self._transact(write_sequence_records, lambda answer: not answer)
        if not refused:
            for sequence in old:
                del self._members[sequence]
            self._waiting = {(name, sequence) for name, sequence in away if sequence not in self._members}
            self._members[manifest.sequence] = manifest.members
        return refused

    def _send_records(self, producer: Producer, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Send records of the open transaction, sealed under its producer."""
        author = RecordAuthor(producer.producer_id, producer.epoch)
        self._sent_by = author.producer_id
        for key, value in (*self._statement(author), *records):
            headers = seal_headers(self._key, self._region, author, key, value)
            self._sent.append(producer.send(TOPIC, value, key, partition=self._partition, headers=headers))

    def _statement(self, author: RecordAuthor) -> list[tuple[bytes, bytes | None]]:
        """Return the term's record again if this producer's id is new, so that readers accept its records.

        Kafka gives a transactional id another producer id when it has expired, or its epochs are used up.
        """
        if self._stated is None or self._stated_by in (-1, author.producer_id):
            return []
        self._stated = replace(self._stated, stated=self._stated.stated + 1)
        return [(key_of(self._stated), value_of(self._stated))]

    def _transact(self, fill: Callable[[Producer], T], commits: Callable[[T], bool] = lambda _: True) -> T:
        """Run one transaction: commit if `commits` accepts what `fill` returns, otherwise abort.

        Raises:
            TermOverError: another control plane has taken over.
            UnknownOutcomeError: the outcome of the commit is unknown.
            KafkaError: the transaction was not committed.
        """
        if self._producer is None:
            self._settled()
        producer = self._producer
        assert producer is not None
        try:
            producer.begin_transaction()
            self._sent.clear()
            told = fill(producer)
            if commits(told):
                for delivery in self._sent:
                    delivery.result()  # an error up to here means that nothing is committed
                self._commit(producer)
                self._stated_by = self._sent_by
                return told
        except (TermOverError, UnknownOutcomeError):
            self._drop_producer()
            raise
        except KafkaError as error:
            self._abort(producer)
            raise _over(error) from error
        self._abort(producer)
        return told

    @staticmethod
    def _commit(producer: Producer) -> None:
        """End the transaction, after all its records were written.

        An error of any kind leaves the outcome unknown. One example is INVALID_TXN_STATE. It answers a request that
        is repeated because the first answer was lost, when the transaction has ended meanwhile, in either way.
        """
        try:
            producer.commit_transaction()
        except KafkaError as error:
            fenced = _over(error)
            if isinstance(fenced, TermOverError):
                raise fenced from error
            raise UnknownOutcomeError(f"whether a transaction was committed is not known: {error}") from error

    def _abort(self, producer: Producer) -> None:
        """Abort the transaction; if the answer is lost, the next transaction settles the outcome."""
        try:
            producer.abort_transaction()
        except KafkaError as error:
            log.debug(
                "[region %s] no answer to the abort of a transaction, which the next transaction settles: %s",
                self._region,
                error,
            )
            self._drop_producer()

    def adopt(self, place: str, was: str, shows: int) -> None:
        """Write the facts with which the region continues from what a sink shows."""
        facts = records_after_adoption(self._settled().history(self._region), place, was, shows, _now_ms())
        records = [(key_of(fact), value_of(fact)) for fact in facts]
        self._transact(lambda producer: self._send_records(producer, records))

    def delete_region(self) -> None:
        """Delete all records of the region by tombstones, in one transaction, also those of strangers. Claims stay."""
        self._settled()
        keys = self._reader.table.keys_of(self._region)
        self._transact(lambda producer: self._send_records(producer, [(key, None) for key in keys]))

    def reseal(self) -> int:
        """Write all facts once more, with this key; the reader has taken them whichever key sealed them."""
        term = self._settled().term
        facts = [fact for fact in self._reader.table.in_order() if fact.region == self._region and fact != term]
        if term is not None:
            facts.insert(0, replace(term, stated=term.stated + 1))
        records = [(key_of(fact), value_of(fact)) for fact in facts]
        self._transact(lambda producer: self._send_records(producer, records))
        return len(records)

    def settle(self) -> int:
        """Return the last complete sequence after a commit's answer was lost; settle pending transactions first."""
        try:
            return self._settled().sequence
        except TermOverError:
            raise
        except KafkaError as error:
            raise _over(error) from error

    # -- clients outside the region

    def outsiders(
        self, group: str, parts: tuple[Part, ...], members: frozenset[str]
    ) -> tuple[OutsideClient, ...] | None:
        """Return the clients outside the region that hold these partitions; None: the group is not stable."""
        if self._admin is None:
            self._admin = Admin(self._servers, **self._settings)
        found = self._admin.describe_consumer_groups([group]).result(group)
        if found.state.lower() != "stable":
            return None
        wanted = {TopicPartition(part.topic, part.partition): part for part in parts}
        seen = []
        for member in found.members:
            held = tuple(wanted[part] for part in member.assignment or () if part in wanted)
            if held and member.member_id not in members and not is_of(self._region, member.client_id):
                seen.append(OutsideClient(group, member.client_id, member.host, held))
        return tuple(seen)

    def close(self) -> None:
        """Close the connections; an open transaction ends by its timeout."""
        with contextlib.suppress(KafkaError):
            self._drop_producer()
        self._reader.close()
        if self._admin is not None:
            self._admin.close()


def _over(error: KafkaError) -> KafkaError:
    if isinstance(error, FencedError) or error.code in _OVER:
        return TermOverError(f"another control plane has taken over, or a transaction took too long: {error}")
    return error


def _metadata(offsets: MemberOffsets) -> GroupMetadata:
    who = offsets.identity
    return GroupMetadata(offsets.group, who.generation, who.member_id, who.instance_id)


def _offsets(positions: Iterable[Position]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        TopicPartition(position.topic, position.partition): OffsetAndMetadata(
            position.offset, "", position.leader_epoch
        )
        for position in positions
    }
