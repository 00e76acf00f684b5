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
from kohort.region.fact_table import FactTable, UnverifiedFactTable, seal_headers
from kohort.region.leader_election import ControlPlaneAddress
from kohort.region.record_codec import checkpoint_tombstones, encode_fact_key, encode_fact_value
from kohort.region.records import Contribution, Fact, GroupClaim, Manifest, Part, Position, RegionCreated, TermBegun
from kohort.region.region_key import RecordAuthor, RegionKey, existing_key, random_key, region_key
from kohort.region.region_topic import (
    CLAIMS,
    TOPIC,
    SavedFacts,
    TopicReader,
    check_regions_topic,
    ensure_regions_topic,
    facts_of_region,
    group_claim_key,
    is_member_client_id,
    owning_claim,
    region_partition,
    region_transactional_id,
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
    """The view that one application has of its region's records in the topic `__kohort_regions`. Thread-safe.

    Methods that read create nothing. The first method that writes creates the topic if it is missing. It also creates
    the machine's region key if a key is neither given nor in the environment nor on this machine.
    """

    def __init__(
        self, region: str, servers: Servers, settings: Mapping[str, Any], key: RegionKey | None = None
    ) -> None:
        """Initialise the view; the first call connects.

        `key` None: use the environment's key, or the machine's key file.
        """
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
        """Return the key that verifies the seals of records.

        If no key exists yet, return one under which no record is valid.
        """
        found = self.__dict__.get("_key") or self._given or existing_key()
        return self._unsealed if found is None else found

    def term_secret(self, term: int) -> bytes:
        """Return the shared secret of a term.

        A member and the control plane prove it to each other when they connect.
        """
        return self._key.term_secret(self._region, term)

    def partition_count(self) -> int:
        """Return the number of partitions of `__kohort_regions`; create the topic if it is missing."""
        with self._lock:
            if not self._partitions:
                self._partitions = ensure_regions_topic(self._servers, self._settings)
            return self._partitions

    def count_existing_partitions(self) -> int:
        """Return the number of partitions of `__kohort_regions`; 0 if the topic does not exist. Nothing is created."""
        with self._lock:
            if not self._partitions:
                self._partitions = check_regions_topic(self._servers, self._settings)
            return self._partitions

    def read_facts(self, partition: int | None = None) -> list[Fact]:
        """Read a partition of the topic to its end; return its current valid records (facts). No topic: return none.

        `partition` None: read the partition that has this region's records.
        """
        return self.topic_reader(partition).read_all_facts() if self.count_existing_partitions() else []

    def topic_reader(self, partition: int | None = None) -> TopicReader:
        """Return the cached reader of one partition of `__kohort_regions`.

        `partition` None: read the partition that has this region's records.

        Raises:
            NotFoundError: there is no topic.
        """
        partitions = self.count_existing_partitions()
        if not partitions:
            raise NotFoundError(f"there is no topic {TOPIC}: no region has begun")
        with self._lock:
            key = self._reading_key()
            number = region_partition(self._region, partitions) if partition is None else partition
            if (number, key.name) not in self._readers:
                self._readers[number, key.name] = TopicReader(self._servers, self._settings, number, key, self._region)
            return self._readers[number, key.name]

    def read_saved_facts(self) -> SavedFacts:
        """Return the region's current records, read up to the end of its partition; empty if the topic does not exist.

        Raises:
            InvalidInputError: the topic has records of the region, and none is valid by this process's key.
        """
        if not self.count_existing_partitions():
            return SavedFacts()
        reader = self.topic_reader()
        saved = facts_of_region(self._region, reader.read_all_facts(), reader.table.ignored_because)
        saved.refuse_if_all_ignored(self._region)
        return saved

    def newest_address(self) -> ControlPlaneAddress | None:
        """Return the address of the control plane that began the newest term; None: no control plane has begun yet."""
        term = self.read_saved_facts().term
        if term is None:
            return None
        return ControlPlaneAddress(term.term, term.host, term.port, self.term_secret(term.term), term.pin)

    def region_id(self, reach: Callable[[], Link]) -> UUID:
        """Return the region's UUID, which its first control plane creates.

        Args:
            reach: connects to the region's control plane, or starts one; retried for 30 s.

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
        birth = self.read_saved_facts().birth
        if birth is None:
            raise TimedOutError(f"region {self._region} has a control plane and no beginning")
        return birth.region_id

    # -- groups

    def check_group(self, group: str) -> None:
        """Check that this region may claim a consumer group, without claiming it.

        Raises:
            InvalidInputError: another region has claimed the group, or the group has members outside the region.
        """
        claimed = owning_claim(group, self.read_facts(CLAIMS))
        if claimed is not None:
            self._refuse_claimed(claimed)
        with Admin(self._servers, **self._settings) as admin:
            try:
                found = admin.describe_consumer_groups([group]).result(group)
            except KafkaError as error:
                if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
                    return
                raise
        others = [member for member in found.members if not is_member_client_id(self._region, member.client_id)]
        if others:
            who = ", ".join(f"{member.client_id or member.member_id} at {member.host}" for member in others[:5])
            raise InvalidInputError(
                f"group {group!r} has members that are not of region {self._region!r}: {who}; "
                "stop them, or give the region a group of its own"
            )

    def claim_group(self, group: str) -> None:
        """Claim a consumer group for this region by a record in the topic, unless the region has claimed it before.

        Raises:
            InvalidInputError: another region has claimed the group.
        """
        self._refuse_claimed(owning_claim(group, self.read_facts(CLAIMS)) or self._claim_group(group))

    def _refuse_claimed(self, claimed: GroupClaim) -> None:
        if claimed.region != self._region:
            raise InvalidInputError(
                f"group {claimed.group!r} belongs to region {claimed.region!r} (claimed by {claimed.application}): "
                f"use another group, or delete that region"
            )

    def _claim_group(self, group: str) -> GroupClaim:
        mine = GroupClaim(group, self._region, f"{socket.gethostname()}, process {os.getpid()}", _now_ms())
        self._put_claims([(encode_fact_key(mine), encode_fact_value(mine))])
        first = owning_claim(group, self.read_facts(CLAIMS))
        if first is not None and first.region != self._region:
            self._put_claims([(group_claim_key(group, self._region), None)])
        return first or mine

    def _put_claims(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write claims or their tombstones in one transaction, under a transactional id that is used only once.

        The control plane's own transactional id would fence the control plane.
        """
        self.partition_count()
        own = {"transactional_id": f"{region_transactional_id(self._region)}/claim-{uuid4().hex}", "linger_ms": 0}
        with Producer(self._servers, **{**self._settings, **own}) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            author = RecordAuthor(producer.producer_id, producer.epoch)
            sent = []
            for key, value in records:
                headers = seal_headers(self._key, self._region, author, key, value)
                sent.append(producer.send(TOPIC, value, key, partition=CLAIMS, headers=headers))
            for delivery in sent:
                delivery.result()
            producer.commit_transaction()

    def release_claims(self) -> None:
        """Delete the records by which this region has claimed consumer groups, also those that another key has sealed.

        For other regions these count too. After the key was lost, only their tombstones free the groups.
        """
        if not self.count_existing_partitions():
            return
        if keys := self.topic_reader(CLAIMS).group_claim_keys(self._region):
            self._put_claims([(key, None) for key in keys])

    def adopt(self, place: str, previous_name: str, published_sequence: int) -> None:
        """Continue the region from the sequence (checkpoint number) that a sink has published, after the two disagreed.

        An operator calls this after a sink or the topic was restored from an older copy, or a sink has moved. No
        process may serve the region.

        Args:
            place: the sink's present name.
            previous_name: the name that the sink's destination has stored; empty or equal to `place`: the sink has not
                moved.
            published_sequence: the last sequence that the sink has published.

        Raises:
            TermOverError: a control plane has begun a term meanwhile.
        """
        writer = self._new_writer()
        try:
            writer.adopt(place, previous_name, published_sequence)
        finally:
            writer.close()

    def delete(self) -> None:
        """Delete all records of the region from the topic, and its claims on consumer groups. Rows in its sinks stay.

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
        """Seal the region's records again with this process's key, after accepting those that another key has sealed.

        An operator calls this after the region's key was lost or replaced. No process may serve the region. Its claims
        of groups are left as they are: they count whichever key sealed them.

        Returns:
            The number of records that were written again.

        Raises:
            TermOverError: a control plane has begun a term meanwhile.
        """
        writer = self._new_writer(UnverifiedFactTable(self._key, self._region))
        try:
            return writer.reseal()
        finally:
            writer.close()

    def _new_writer(self, table: FactTable | None = None) -> RegionLogWriter:
        partition = region_partition(self._region, self.partition_count())
        return RegionLogWriter(self._region, self._servers, self._settings, partition, self._key, table)

    # -- the control plane

    def take_over(self, host: str, port: int, pin: bytes = b"") -> tuple[RegionLog, RegionFacts]:
        """Begin a new term with this process as the control plane, and fence the control plane before it.

        Args:
            host: the host at which members can reach the new control plane.
            port: its port.
            pin: the SHA-256 of its TLS certificate; empty: without TLS.

        Returns:
            The writer of the region's records, and the region's state at the beginning of the term.
        """
        writer = self._new_writer()
        try:
            return writer, writer.begin(host, port, pin)
        except BaseException:
            writer.close()
            raise

    def close(self) -> None:
        """Close the readers' connections to the cluster."""
        with self._lock:
            for reader in self._readers.values():
                reader.close()
            self._readers.clear()


def read_regions(
    servers: Servers, settings: Mapping[str, Any], key: RegionKey | None = None
) -> dict[str, tuple[SavedFacts, list[str]]]:
    """Return all regions in `__kohort_regions` by name: the records of each, and the consumer groups it has claimed.

    A region is listed even if this process's key validates none of its records; `SavedFacts.ignored_because` then has
    the reason. Nothing is created: without the topic the result is empty.
    """
    home = RegionLogView("", servers, settings, key)
    ignored_because: dict[str, str] = {}
    facts: list[Fact] = []
    try:
        for partition in range(home.count_existing_partitions()):
            facts += home.read_facts(partition)
            ignored_because |= home.topic_reader(partition).table.ignored_because
    finally:
        home.close()
    groups: dict[str, list[str]] = {}
    for fact in facts:
        if isinstance(fact, GroupClaim):
            first = owning_claim(fact.group, facts)
            if first is not None and first.region == fact.region:
                groups.setdefault(fact.region, []).append(fact.group)
    names = sorted(
        {fact.region for fact in facts if isinstance(fact, RegionCreated | GroupClaim)} | ignored_because.keys()
    )
    return {name: (facts_of_region(name, facts, ignored_because), sorted(groups.get(name, ()))) for name in names}


class RegionLogWriter:
    """The transactional producer by which a control plane writes the region's records to `__kohort_regions`.

    One thread uses it at a time. Only `find_outside_clients`, `raise_if_term_over` and `close` may be called by another
    thread meanwhile. After `close` no producer is initialised any more: it would fence the next control plane.
    """

    def __init__(
        self,
        region: str,
        servers: Servers,
        settings: Mapping[str, Any],
        partition: int,
        key: RegionKey,
        table: FactTable | None = None,
    ) -> None:
        """Initialise the writer; the first other call connects.

        Args:
            region: the region's name.
            servers: the cluster's bootstrap servers.
            settings: the client settings of its connections.
            partition: the partition of `__kohort_regions` that has this region's records.
            key: the key that seals the records.
            table: decides which records are valid; None: those that this key has sealed.
        """
        self._region, self._servers, self._settings, self._partition = region, servers, dict(settings), partition
        self._key = key
        self._reader = self._new_reader()
        if table is not None:
            self._reader.table = table
        self._lock = threading.Lock()  # of `_closed`, `_producer` and `_admin`, which `close` takes from another thread
        self._closed = False
        self._stated: TermBegun | None = None  # the newest term, and the producer that the topic knows by it
        self._stated_by = self._sent_by = -1
        self._admin: Admin | None = None
        self._producer: Producer | None = None
        self._term = 0
        self._sent: list[Delivery] = []  # in the transaction that is open
        self._members: dict[int, tuple[str, ...]] = {}
        self._waiting: set[tuple[str, int]] = set()  # contributions of sequences that are retired but for these

    def begin(self, host: str, port: int, pin: bytes = b"") -> RegionFacts:
        """Begin a new term: fence the control plane before, then write the term's record with this process's address.

        Raises:
            InvalidInputError: the topic has records of the region, and none is valid by this process's key.
            TermOverError: another control plane has begun a term meanwhile.
            KafkaError: the topic can't be read or written, or the outcome is unknown. Another call continues from what
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
            why := self._reader.table.wrong_key_reason(self._region, self._producer.producer_id)
        ):
            saved = SavedFacts(ignored_because=why)
        saved.refuse_if_all_ignored(self._region)
        self._term = 1 if saved.term is None else saved.term.term + 1
        term = TermBegun(self._region, self._term, host, port, pin, _now_ms())
        self._stated, self._stated_by = term, -1  # the term itself states its producer
        facts: list[Fact] = [term]
        if saved.birth is None:
            saved.birth = RegionCreated(self._region, uuid4(), _now_ms())
            facts.append(saved.birth)
        self._write_facts(facts)
        return saved.to_region_facts(self._region, self._term)

    def _settled(self) -> SavedFacts:
        """Fence earlier producers, so that no transaction is pending any more; then return the current records."""
        self._drop_producer()
        with self._lock:
            self._raise_if_closed()
            producer = self._producer = self._new_producer()  # `close` must find it while it is initialised
        try:
            producer.init_transactions()
        except BaseException:
            self._drop_producer()
            self._raise_if_closed()
            raise
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
        """Create the reader of the partition that has this region's records."""
        return TopicReader(self._servers, self._settings, self._partition, self._key, self._region)

    def _new_producer(self) -> Producer:
        """Create the transactional producer; the caller must call `init_transactions` on it."""
        own = {
            "transactional_id": region_transactional_id(self._region),
            "transaction_timeout_ms": TRANSACTION_MS,
            "linger_ms": 0,
        }
        return Producer(self._servers, **{**self._settings, **own})

    def _followed(self) -> SavedFacts:
        """Read the topic to its end and return the region's records; raise TermOverError if another term has begun."""
        saved = facts_of_region(self._region, self._reader.read_all_facts(), self._reader.table.ignored_because)
        if self._term and saved.term is not None and saved.term.term != self._term:
            raise TermOverError(f"term {saved.term.term} has begun")
        return saved

    def raise_if_term_over(self) -> None:
        """Read the topic to its end; raise `TermOverError` if another control plane has begun a later term."""
        self._followed()

    def _drop_producer(self) -> None:
        with self._lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            producer.close(timeout_ms=0)

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise TermOverError("the control plane was closed")

    # -- writing

    def save(self, facts: Iterable[Fact]) -> None:
        """Write records of the region in one transaction.

        Raises:
            TimedOutError: the outcome is unknown; the caller may write the same records again.
        """
        try:
            self._write_facts(facts)
        except UnknownOutcomeError as error:
            raise TimedOutError(
                str(error)
            ) from error  # the same facts are written again, whether they were committed or not

    def _write_facts(self, facts: Iterable[Fact]) -> None:
        records = [(encode_fact_key(fact), encode_fact_value(fact)) for fact in facts]
        self._transact(lambda producer: self._send_records(producer, records))

    def commit(
        self, manifest: Manifest, contributions: tuple[Contribution, ...], offsets: tuple[MemberOffsets, ...]
    ) -> dict[str, OffsetsRefusal]:
        """Commit a checkpoint in one transaction: all acknowledgements, the manifest, and the offsets of all groups.

        The transaction also has tombstones for checkpoints that are no longer needed.

        Returns:
            Empty if the checkpoint is committed. Otherwise the transaction is aborted, and the result has the reason
                for each member whose offsets the group coordinator rejected.
        """
        records: list[tuple[bytes, bytes | None]] = [
            (encode_fact_key(contribution), encode_fact_value(contribution)) for contribution in contributions
        ]
        records.append((encode_fact_key(manifest), encode_fact_value(manifest)))
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
        """Send records in the open transaction.

        Each is sealed for this producer's id and epoch, so that a copy is not valid.
        """
        author = RecordAuthor(producer.producer_id, producer.epoch)
        self._sent_by = author.producer_id
        for key, value in (*self._statement(author), *records):
            headers = seal_headers(self._key, self._region, author, key, value)
            self._sent.append(producer.send(TOPIC, value, key, partition=self._partition, headers=headers))

    def _statement(self, author: RecordAuthor) -> list[tuple[bytes, bytes | None]]:
        """Return the term's record to write again if the producer has a new producer id, or none.

        Readers accept only records of the producer id that wrote the term. Kafka gives a transactional id another
        producer id when it has expired, or when its epochs are used up.
        """
        if self._stated is None or self._stated_by in (-1, author.producer_id):
            return []
        self._stated = replace(self._stated, stated=self._stated.stated + 1)
        return [(encode_fact_key(self._stated), encode_fact_value(self._stated))]

    def _transact(self, fill: Callable[[Producer], T], commits: Callable[[T], bool] = lambda _: True) -> T:
        """Run one transaction, and return what `fill` returns.

        Args:
            fill: sends the records.
            commits: whether to commit, given what `fill` has returned; otherwise the transaction is aborted.

        Raises:
            TermOverError: another control plane has taken over, or the transaction took too long.
            UnknownOutcomeError: the outcome of the commit is unknown.
            KafkaError: the transaction was not committed.
        """
        if self._producer is None:
            self._settled()
        producer = self._producer
        if producer is None:  # `close` took it
            raise TermOverError("the control plane was closed")
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
            self._raise_if_closed()
            raise _over(error) from error
        self._abort(producer)
        return told

    @staticmethod
    def _commit(producer: Producer) -> None:
        """Commit the transaction, after all its records were acknowledged.

        Any error except a fencing leaves the outcome unknown. One example is INVALID_TXN_STATE. The client repeats a
        request whose answer was lost, and the transaction has meanwhile been committed or aborted.
        """
        try:
            producer.commit_transaction()
        except KafkaError as error:
            fenced = _over(error)
            if isinstance(fenced, TermOverError):
                raise fenced from error
            raise UnknownOutcomeError(f"whether a transaction was committed is not known: {error}") from error

    def _abort(self, producer: Producer) -> None:
        """Abort the transaction.

        If the answer is lost, close the producer: the next `init_transactions` ends the transaction.
        """
        try:
            producer.abort_transaction()
        except KafkaError as error:
            log.debug(
                "[region %s] no answer to the abort of a transaction, which the next transaction settles: %s",
                self._region,
                error,
            )
            self._drop_producer()

    def adopt(self, place: str, previous_name: str, published_sequence: int) -> None:
        """Write the records with which the region continues from a sink's last checkpoint (`RegionLogView.adopt`)."""
        facts = records_after_adoption(
            self._settled().adoption_history(self._region), place, previous_name, published_sequence, _now_ms()
        )
        records = [(encode_fact_key(fact), encode_fact_value(fact)) for fact in facts]
        self._transact(lambda producer: self._send_records(producer, records))

    def delete_region(self) -> None:
        """Write a tombstone for each record of the region, also for invalid ones, in one transaction.

        Group claims stay.
        """
        self._settled()
        keys = self._reader.table.record_keys_of_region(self._region)
        self._transact(lambda producer: self._send_records(producer, [(key, None) for key in keys]))

    def reseal(self) -> int:
        """Write all records of the region once more, sealed with this process's key; return how many they are.

        The reader must accept records of any key (`UnverifiedFactTable`).
        """
        term = self._settled().term
        facts = [
            fact for fact in self._reader.table.facts_in_log_order() if fact.region == self._region and fact != term
        ]
        if term is not None:
            facts.insert(0, replace(term, stated=term.stated + 1))
        records = [(encode_fact_key(fact), encode_fact_value(fact)) for fact in facts]
        self._transact(lambda producer: self._send_records(producer, records))
        return len(records)

    def resolve_pending_commit(self) -> int:
        """Find out which checkpoint was committed last, after the answer to a commit was lost; return its sequence.

        A new producer is initialised first, so that the pending transaction is committed or aborted before the topic is
        read.
        """
        try:
            return self._settled().sequence
        except TermOverError:
            raise
        except KafkaError as error:
            raise _over(error) from error

    # -- clients outside the region

    def find_outside_clients(
        self, group: str, parts: tuple[Part, ...], members: frozenset[str]
    ) -> tuple[OutsideClient, ...] | None:
        """Return members of a consumer group that own some of these partitions and do not belong to the region.

        Args:
            group: the consumer group.
            parts: the partitions.
            members: the ids that Kafka has given to the region's members.

        Returns:
            The foreign members with these partitions. None: the group is not stable (it rebalances or has no member),
                so that owners can't be told.
        """
        with self._lock:
            self._raise_if_closed()
            admin = self._admin = self._admin or Admin(self._servers, **self._settings)
        found = admin.describe_consumer_groups([group]).result(group)
        if found.state.lower() != "stable":
            return None
        wanted = {TopicPartition(part.topic, part.partition): part for part in parts}
        seen = []
        for member in found.members:
            held = tuple(wanted[part] for part in member.assignment or () if part in wanted)
            if held and member.member_id not in members and not is_member_client_id(self._region, member.client_id):
                seen.append(OutsideClient(group, member.client_id, member.host, held))
        return tuple(seen)

    def close(self) -> None:
        """Close all connections; a write on another thread fails. The broker aborts an open transaction by its timeout.

        Any thread may call this.
        """
        with self._lock:
            self._closed = True
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
