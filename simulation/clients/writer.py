"""A writing application: it sends records, or transactions of records and offsets, and is killed and restarted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kohort.client.net.runtime import Work
from kohort.client.producer.accumulator import WouldBlock
from kohort.client.producer.batches import RecordMetadata
from kohort.client.producer.core import ProducerCore, producer_config
from kohort.client.producer.transactions import TxnState
from kohort.errors import KafkaError, RetriableError
from kohort.ids import TopicPartition
from simulation.clients.broker import TOPIC, Brokers
from simulation.clients.checkers import ClientChecker, SentRecord, from_callback
from simulation.clients.partition import Fate
from simulation.clients.reader import GROUP, SERVERS, SETTINGS
from simulation.harness.world import WALL_START_MS, World
from simulation.remote.kafka_client import KafkaClient
from simulation.remote.life import ProcessLife

PAUSE_MS = (150, 600, 2_000)
"""The maximum pauses between two groups of records."""
HOLD_MS = (0, 200, 3_000)
"""The maximum times for which a transaction is held open."""
RECORDS = (1, 4, 12)
"""The maximum numbers of records sent at once."""
DELIVERY_MS = (7_000, 30_000)
TRANSACTION_MS = (6_000, 60_000)


class WritingApplication:
    """One application with one producer at a time.

    Attributes:
        records: all records that were sent by all its producers.
        living: those of the current producer.
        life: the number of its current process.
    """

    def __init__(
        self, name: str, world: World, brokers: Brokers, checkers: list[ClientChecker], *, transactional: bool
    ) -> None:
        self.name = name
        self.world = world
        self.brokers = brokers
        self.checkers = checkers
        self.transactional = transactional
        self.chance = world.stream(name)
        self.records: list[SentRecord] = []
        self.living: list[SentRecord] = []
        self.healthy = False
        self._most = self.chance.choice(RECORDS)
        self._pause_ms = self.chance.choice(PAUSE_MS)
        self._hold_ms = self.chance.choice(HOLD_MS)
        self._sends_offsets = self.chance.likely(0.6)
        self._settings = {
            **SETTINGS,
            "batch_size": self.chance.choice((200, 1_000, 16_000)),
            "linger_ms": self.chance.choice((0, 20)),
            "delivery_timeout_ms": self.chance.choice(DELIVERY_MS),
            "max_in_flight_requests_per_connection": self.chance.choice((1, 5, 5)),
            "connections_per_broker": self.chance.choice((1, 2)),
            "max_block_ms": 12_000,
        }
        if transactional:
            self._settings["transactional_id"] = name
            self._settings["transaction_timeout_ms"] = self.chance.choice(TRANSACTION_MS)
        self._lives = 0
        self._started = False
        self.life = ProcessLife(world, lambda: None)

    def start(self) -> None:
        """Start a new process with a new producer."""
        self._lives += 1
        self.writer = f"{self.name}.{self._lives}"
        self.life = ProcessLife(self.world, lambda: None)
        config = producer_config(SERVERS, {**self._settings, "client_id": self.writer})
        self._client = KafkaClient(self.world, self.chance, self.brokers, self.life, self.writer, config)
        self._core = ProducerCore(self._client.cluster, config, self._wake, clock_ms=lambda: float(self.world.now_ms))
        self.living = []
        self._count = 0
        self._transaction = 0
        self._started = True
        self.life.after(0, self._begin)

    def crash(self) -> None:
        """Kill the process."""
        if self._started:
            self.world.log(f"{self.writer}: is killed")
            self.life.die()
            self._client.die()
            self._started = False

    def restart(self, down_ms: int) -> None:
        """Kill the process, and start another a while later."""
        if self._started:
            self.crash()
            self.world.after(down_ms, lambda: None if self._started else self.start())

    def heal(self) -> None:
        """After the fault phase, start the application if needed; a process that has sent before begins nothing new."""
        self.healthy = True
        if not self._started:
            self.start()

    def _wake(self, step: Callable[[], None]) -> None:
        self._client.cluster.runtime.set_time(self.world.now_ms)
        step()
        self._client.wake()

    def _call(self, coro: Work[Any], then: Callable[[Any], None], failed: Callable[[KafkaError], None]) -> None:
        runtime = self._client.cluster.runtime
        runtime.set_time(self.world.now_ms)
        task = runtime.spawn(coro)

        def done(_: object) -> None:
            error = task.error
            if error is None:
                self.life.after(0, lambda: then(task.result()))
            elif isinstance(error, KafkaError):
                self.life.after(0, lambda: failed(error))
            elif isinstance(error, Exception):
                raise error

        task.on_done(done)
        self._client.wake()

    # Records.

    def _begin(self) -> None:
        if self.transactional:
            self._call(self._core.init_transactions(), lambda _: self._open(), self._again)
        else:
            self._lot()

    def _again(self, error: KafkaError) -> None:
        """Replace the producer after a fatal error."""
        self.world.log(f"{self.writer}: ends: {error}")
        self._call(self._core.close(1_000), lambda _: self._replace(), lambda _: self._replace())

    def _replace(self) -> None:
        self.life.die()
        self._client.die()
        self.start()

    def _lot(self) -> None:
        if self.healthy and self._count > 0:
            return
        for _ in range(1 + self.chance.upto(self._most)):
            if not self._send():
                return
        self.life.after(self.chance.upto(self._pause_ms), self._lot)

    def _send(self) -> bool:
        """Send one record; return False if the send is blocked or has failed, after which writing resumes by itself."""
        partition = self.chance.choice(list(self.brokers.partitions))
        self._count += 1
        record = SentRecord(f"{self.writer}:{self._count}", partition, self._transaction if self.transactional else -1)

        def reported(error: KafkaError | None, metadata: RecordMetadata | None) -> None:
            record.error, record.offset = error, None if metadata is None else metadata.offset
            for checker in self.checkers:
                from_callback(self.world, partial(checker.on_delivery_report, record))

        try:
            self._core.send(
                TOPIC, record.value, None, partition.partition, WALL_START_MS + self.world.now_ms, (), reported
            )
        except WouldBlock as reason:
            self._count -= 1
            self._call(
                reason.wait(self._core.send_deadline_ms()), lambda _: self._continue(), lambda _: self._continue()
            )
            return False
        except KafkaError as error:
            self.world.log(f"{self.writer}: send failed: {error}")
            self._count -= 1
            if self.transactional:
                self._abort()
            else:
                self._again(error)
            return False
        self.records.append(record)
        self.living.append(record)
        return True

    def _continue(self) -> None:
        if self.transactional:
            self._fill()
        else:
            self._lot()

    # Transactions.

    def _open(self) -> None:
        if self.healthy and self._transaction > 0:
            return
        self._transaction += 1
        self._sent_from = len(self.living)
        self._left = 1 + self.chance.upto(self._most)
        self._ends_ms = self.world.now_ms + self.chance.upto(self._hold_ms)
        self.world.log(f"{self.writer}: transaction {self._transaction}")
        self._call(self._core.begin_transaction(), lambda _: self._fill(), self._again)

    def _fill(self) -> None:
        while self._left > 0:
            if not self._send():
                return
            self._left -= 1
        self.life.after(max(0, self._ends_ms - self.world.now_ms), self._offsets)

    def _offsets(self) -> None:
        partition = self.chance.choice(list(self.brokers.partitions))
        if not self._sends_offsets:
            self._finish()
            return
        offsets: dict[TopicPartition, Any] = {partition: self.chance.upto(self.brokers.partitions[partition].end)}
        self._call(
            self._core.send_offsets_to_transaction(offsets, GROUP),
            lambda _: self._hold(),
            lambda error: self._abort(),
        )

    def _hold(self) -> None:
        self.life.after(self.chance.upto(self._hold_ms), self._finish)

    def _finish(self) -> None:
        if self.chance.likely(0.7):
            self._commit()
        else:
            self._abort()

    def _commit(self) -> None:
        self._call(self._core.commit_transaction(), lambda _: self._ended(Fate.COMMITTED), self._not_committed)

    def _not_committed(self, error: KafkaError) -> None:
        self.world.log(f"{self.writer}: commit failed: {error}")
        transactions = self._core.transactions
        assert transactions is not None
        if transactions.state is TxnState.COMMITTING and isinstance(error, RetriableError):
            self._commit()
        elif transactions.state is TxnState.FAILED:
            self._abort(unsure=True)
        else:
            self._unsure()
            self._again(error)

    def _abort(self, *, unsure: bool = False) -> None:
        def failed(error: KafkaError) -> None:
            self.world.log(f"{self.writer}: abort failed: {error}")
            transactions = self._core.transactions
            assert transactions is not None
            if transactions.state is TxnState.ABORTING and isinstance(error, RetriableError):
                self._abort(unsure=unsure)
            else:
                self._unsure()
                self._again(error)

        outcome = Fate.OPEN if unsure else Fate.ABORTED
        self._call(self._core.abort_transaction(), lambda _: self._ended(outcome), failed)

    def _unsure(self) -> None:
        self._report_outcome(Fate.OPEN)

    def _ended(self, outcome: Fate) -> None:
        self._report_outcome(outcome)
        self.life.after(self.chance.upto(self._pause_ms), self._open)

    def _report_outcome(self, outcome: Fate) -> None:
        self.world.log(f"{self.writer}: transaction {self._transaction} ended: {outcome.value}")
        for checker in self.checkers:
            checker.on_ended(self.living[self._sent_from :], outcome)
