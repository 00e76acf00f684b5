"""A region's partition of the topic and its transaction coordinator, which answers with every error that Kafka has.

The `RegionLogWriter` and the `RetryingFactWriter` that ship write through it. The producer's own requests are left
out: an error is what the writer's call raises.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from kohort.errors import ErrorCode, KafkaError, error_for
from kohort.region.control_plane.events import MemberOffsets
from kohort.region.fact_table import FactTable, StoredRecord
from kohort.region.record_codec import encode_fact_key, encode_fact_value
from kohort.region.records import (
    Contribution,
    EpochBegun,
    Fact,
    InitialOffset,
    Manifest,
    PublishedCheckpoint,
    RegionCreated,
    RegionStopped,
    TermBegun,
    to_part,
)
from kohort.region.region_key import SEAL, RecordAuthor
from kohort.region.region_log import TRANSACTION_MS, RegionLogWriter
from kohort.region.server import OffsetsRefusal
from tests.region.world.clock import ViolatedError
from tests.region.world.group import Members, wrong_offsets
from tests.region.world.names import KEY, REGION, REGION_ID

if TYPE_CHECKING:
    from tests.region.world.world import World

ERRORS = tuple(code for code in ErrorCode if code is not ErrorCode.NONE)
SHARES = (0.0, 0.2, 0.0, 0.02, 0.2)
"""How many of the calls are answered with an error, by seed: in some worlds none, so that all else is seen too."""
LATE_MS = 2_000
"""So late at the most a request arrives whose producer was told of an error."""
PRODUCER_CHANGES = 0.02
"""How often a producer id changes when a producer begins, or a transaction ends."""
STRANGE_MS = 1_000
"""So often a stranger writes at the least."""


class Answered(Enum):
    """Fates of a request to end a transaction."""

    WELL = "it is done, and the answer says so"
    EARLY = "it is not done"
    AFTER = "it is done, and the answer is an error"
    LATE = "it is done when its producer has had an error for an answer"
    TWICE = "it is done, and comes once more"


@dataclass
class Transaction:
    """One that is open, or has ended."""

    epoch: int
    is_sequence: bool
    adopts: bool
    records: list[StoredRecord] = field(default_factory=list)


class Log:
    """The partition, with its one transactional id.

    Attributes:
        epoch: of the producer that was initialised last; requests of others are refused.
        errors: how many calls were answered with one.
        writes_sequence: what is written now has a sequence's manifest.
        adopts: what is written now is a person's, who adopts what a sink shows.
    """

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.clock = world, world.clock
        self.chance = random.Random(f"{seed}: the log")
        self.share = SHARES[seed % len(SHARES)]
        self.epoch = self.errors = self._offset = 0
        self.producers = random.Random(f"{seed}: the producers")
        self.producer_id = 100
        self.open: Transaction | None = None
        self.writes_sequence = self.adopts = False
        birth = RegionCreated(REGION, REGION_ID, 0)
        self.table = FactTable(KEY, REGION)
        self.table.facts[encode_fact_key(birth)] = 0, birth
        self.written: list[StoredRecord] = []
        self.strangers = Strangers(self, seed)

    def is_bad(self) -> bool:
        return not self.world.healed and self.chance.random() < self.share

    def fail_by_chance(self, what: str) -> None:
        """Answer a call with an error, and do nothing."""
        if self.is_bad():
            raise self.error(what)

    def error(self, what: str) -> KafkaError:
        self.errors += 1
        error = error_for(self.chance.choice(ERRORS), what)
        self.clock.log(f"the topic answers {what} with {error.code.name}")
        return error

    def bring_back(self, table: FactTable) -> None:
        """Go on from an older copy; whatever is open is aborted. Its producers are of another history."""
        self.abort(self.open)
        self.table = copy.deepcopy(table)
        self.written.clear()

    def new_producer_id(self) -> int:
        """The id from now on: another now and then, as when a transactional id expires or its epochs are used up."""
        if self.producers.random() < PRODUCER_CHANGES:
            self.producer_id += 1
        return self.producer_id

    def begin_epoch(self) -> int:
        """Abort the transaction that is open, and refuse its producer from now on."""
        self.abort(self.open)
        self.epoch += 1
        return self.epoch

    def begin(self, transaction: Transaction) -> None:
        self._check_epoch(transaction.epoch)
        self.open = transaction
        self.clock.after(TRANSACTION_MS, lambda: self.abort(transaction))

    def abort(self, transaction: Transaction | None) -> None:
        if transaction is not None and transaction is self.open:
            self.open = None
            self.world.group.end(transaction.epoch, commit=False)

    def end(self, transaction: Transaction) -> None:
        """Commit, as it was asked for.

        Raises:
            KafkaError: with a code of the call's own.
        """
        how = self.chance.choice(list(Answered)[1:]) if self.is_bad() else Answered.WELL
        self._check_epoch(transaction.epoch)
        if self.open is not transaction:
            raise error_for(ErrorCode.INVALID_TXN_STATE, "end transaction")
        if how in (Answered.WELL, Answered.AFTER, Answered.TWICE):
            self._commit(transaction)
        if how in (Answered.LATE, Answered.TWICE):
            self.clock.after(self.chance.randint(1, LATE_MS), lambda: self._comes_late(transaction))
        if how is not Answered.WELL:
            raise self.error(f"the end of a transaction ({how.value})")

    def check(self, transaction: Transaction) -> None:
        """A request within a transaction is answered.

        Raises:
            KafkaError: with a code of the call's own.
        """
        self._check_epoch(transaction.epoch)
        if self.open is not transaction:
            raise error_for(ErrorCode.INVALID_TXN_STATE, "a transaction")

    def _check_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            raise error_for(ErrorCode.PRODUCER_FENCED, f"epoch {epoch} is over")

    def _comes_late(self, transaction: Transaction) -> None:
        """A request in an epoch ends whatever is open in that, as with Kafka's first version of transactions."""
        if self.open is not None and transaction.epoch == self.epoch:
            self.clock.log("the end of a transaction comes late")
            self._commit(self.open)

    def _commit(self, transaction: Transaction) -> None:
        self.open = None
        self.world.group.end(transaction.epoch, commit=True)
        facts = [self._take(record) for record in transaction.records]
        if transaction.adopts:
            return
        self._check([fact for fact in facts if fact is not None], is_sequence=transaction.is_sequence)

    def _take(self, record: StoredRecord) -> Fact | None:
        fact, why = self.add(record)
        if why:
            raise ViolatedError(f"a record of the region's own {why}: {record}")
        self.written.append(record)
        return fact

    def add(self, record: StoredRecord) -> tuple[Fact | None, str]:
        """A record is in the log, whoever wrote it."""
        self._offset += 1
        return self.table.apply_record(replace(record, offset=self._offset))

    def _check(self, facts: list[Fact], *, is_sequence: bool) -> None:
        stored = self.world.stored
        contributions = tuple(fact for fact in facts if isinstance(fact, Contribution))
        for fact in facts:
            match fact:
                case TermBegun():
                    stored.term = fact.term
                case InitialOffset():
                    stored.initial.setdefault(to_part(fact), fact)
                case PublishedCheckpoint():
                    stored.show(fact)
                case Manifest() if is_sequence:
                    stored.commit(fact, contributions)
                    if self.world.states is not None:
                        self.world.states.check(fact)
                    wrong = wrong_offsets(self.world.group.offsets(), stored.positions, stored.initial)
                    if wrong:
                        raise ViolatedError(f"sequence {stored.sequence}: {wrong}")
                    self.clock.log(f"sequence {fact.sequence} is complete")
                case Manifest():
                    self.clock.log(f"sequence {fact.sequence} is the initial state")
                    stored.go_back(fact)
                case EpochBegun() | RegionStopped() | Contribution() | RegionCreated():
                    pass
                case _:
                    raise AssertionError(fact)


class Strangers:
    """Clients that may write the topic and know all records in it, but neither the key nor the transactional id."""

    def __init__(self, log: Log, seed: int) -> None:
        self._log = log
        self._chance = random.Random(f"{seed}: strangers")
        log.clock.after(STRANGE_MS, self._write)

    def _write(self) -> None:
        """Write something: a record of a stranger's own, with a real seal or none, or an old record once more."""
        log, chance = self._log, self._chance
        log.clock.after(chance.randint(1, STRANGE_MS), self._write)
        if not log.written:
            return
        last, old = log.written[-1], chance.choice(log.written)
        is_replaced = old.author.epoch < last.author.epoch
        if chance.random() < 0.3 and is_replaced:
            record = old
        else:
            authors = (RecordAuthor(-1, -1), last.author, RecordAuthor(7, 0))
            author = chance.choice(authors)
            key, value = self._forged(log, old)
            seal = chance.choice((b"", old.seal, last.seal))
            record = StoredRecord(0, author, author == authors[2], key, value, seal)
        _, why = log.add(record)
        if not why:
            raise ViolatedError(f"a stranger's record counts: {record}")

    def _forged(self, log: Log, old: StoredRecord) -> tuple[bytes, bytes | None]:
        stored, now_ms = log.world.stored, log.clock.now_ms
        facts: list[Fact] = [
            TermBegun(REGION, stored.term + 1, "stranger", 1, b"", now_ms),
            EpochBegun(REGION, 10**6, stored.term, 10**6, 0, "a stranger", now_ms),
            RegionStopped(REGION, "a stranger", "", "", now_ms),
            Manifest(REGION, REGION_ID, stored.sequence + 1, stored.term, 0, now_ms, (), (), ()),
        ]
        fact = self._chance.choice(facts)
        forged = encode_fact_key(fact), encode_fact_value(fact)
        assert old.key is not None
        return self._chance.choice((forged, forged, (old.key, None)))


class Sent:
    """A record in an open transaction."""

    def result(self) -> None:
        """Do nothing: the record is written."""


class WorldProducer:
    """A producer, as far as a `RegionLogWriter` needs one."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._epoch = 0
        self.producer_id = -1
        self._transaction: Transaction | None = None

    @property
    def epoch(self) -> int:
        return self._epoch

    def init_transactions(self) -> None:
        self._log.fail_by_chance("init transactions")
        self._epoch = self._log.begin_epoch()
        self.producer_id = self._log.new_producer_id()

    def begin_transaction(self) -> None:
        self._transaction = Transaction(self._epoch, self._log.writes_sequence, self._log.adopts)

    def send(
        self, topic: str, value: bytes | None, key: bytes, *, partition: int, headers: list[tuple[str, bytes]]
    ) -> Sent:
        del topic, partition
        author = RecordAuthor(self.producer_id, self._epoch)
        self._within().records.append(StoredRecord(0, author, True, key, value, dict(headers)[SEAL]))
        return Sent()

    def send_offsets_of_members(self, members: Members) -> dict[str, KafkaError]:
        self._log.fail_by_chance("the offsets of members")
        refused = self._log.world.group.commit(members, self._within().epoch)
        self._log.fail_by_chance("the offsets of members, which are taken")
        return {member_id: error_for(code, "the offsets of a member") for member_id, code in refused.items()}

    def commit_transaction(self) -> None:
        transaction = self._within()
        self._log.end(transaction)
        self._transaction = None
        self.producer_id = self._log.new_producer_id()

    def abort_transaction(self) -> None:
        self._log.fail_by_chance("an abort")
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            self._log.abort(transaction)

    def close(self, timeout_ms: float | None = None) -> None:
        del timeout_ms

    def _within(self) -> Transaction:
        transaction = self._transaction
        assert transaction is not None
        if self._log.open is None and not transaction.records:
            self._log.fail_by_chance("the first record of a transaction")
            self._log.begin(transaction)
        self._log.check(transaction)
        return transaction


class WorldReader:
    """A reader, as far as a `RegionLogWriter` needs one: it reads what stands."""

    def __init__(self, log: Log) -> None:
        self._log = log

    @property
    def table(self) -> FactTable:
        return self._log.table

    def read_all_facts(self) -> list[Fact]:
        return self.table.facts_in_log_order()

    def close(self) -> None:
        """Nothing is held."""


class WorldPen(RegionLogWriter):
    """The pen that ships, over the world's topic."""

    def __init__(self, log: Log) -> None:
        self._log = log
        super().__init__(REGION, None, {}, 1, KEY)

    def commit(
        self, manifest: Manifest, contributions: tuple[Contribution, ...], offsets: tuple[MemberOffsets, ...]
    ) -> dict[str, OffsetsRefusal]:
        """Commit, and tell the checkers that a sequence is committed."""
        self._log.writes_sequence = True
        try:
            return super().commit(manifest, contributions, offsets)
        finally:
            self._log.writes_sequence = False

    def _new_reader(self) -> Any:
        return WorldReader(self._log)

    def _new_producer(self) -> Any:
        return WorldProducer(self._log)
