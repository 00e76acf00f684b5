"""Transactions: the producer's side, as coroutines of the core.

=============== ============ ============ ============ ============ ==================
state           init         begin        send         commit       abort
=============== ============ ============ ============ ============ ==================
NEW             READY        refused      refused      refused      refused.
READY           refused      OPEN         refused      refused      refused.
OPEN            refused      refused      accepted     READY        READY.
FAILED          refused      refused      refused      refused      READY, next epoch.
COMMITTING      refused      refused      refused      retries      refused.
ABORTING        refused      refused      refused      refused      retries.
DEAD            refused      refused      refused      refused      refused.
=============== ============ ============ ============ ============ ==================

A record or an offset that can't be written makes the transaction FAILED: it can only be aborted. If the response to an
end is lost, the state stays COMMITTING or ABORTING: the same call retries. A producer that was fenced is DEAD.

The cluster's finalized feature `transaction.version` selects one of two protocol versions when a transaction begins:

- 1: The producer adds partitions to the transaction at its coordinator before the first batch to them, and groups
  before their offsets. The epoch rises only when the producer requests it, which it does after a failure.
- 2 (KIP-890): A Produce or a TxnOffsetCommit adds its partition by itself, and every end returns the next epoch. So a
  late batch can never become part of a later transaction.

When the coordinator has ended a transaction after its timeout, version 2 lets the producer abort it like any failed
one. In version 1 the producer is fenced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import TypeVar
from uuid import UUID

from kohort.client.net.cluster import (
    Between,
    Cluster,
    Coordinator,
    check_brokers_coordinate_groups,
    check_group_without_member,
)
from kohort.client.net.metadata import NO_TOPIC_ID
from kohort.client.net.runtime import Awaited, Promise, Task, logged_kafka_error
from kohort.client.offsets import (
    GroupMetadata,
    OffsetAndMetadata,
    is_code_retriable,
    is_topic_gone,
    topic_ids_for_offsets,
)
from kohort.client.producer.accumulator import Accumulator
from kohort.client.producer.batches import Batch
from kohort.client.producer.sender import SOON_MS, Sender, coordinator_of
from kohort.client.producer.settings import ProducerConfig
from kohort.errors import (
    CommitFailedError,
    ErrorCode,
    InvalidInputError,
    KafkaError,
    NotFoundError,
    RetriableError,
    TimedOutError,
    error_for,
)
from kohort.ids import TopicPartition
from kohort.wire.message import Message, RequestMessage
from kohort.wire.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

R = TypeVar("R", bound=Message)

HIGHEST_ADD_PARTITIONS = 3
"""Later versions are for brokers only."""
HIGHEST_OFFSETS_BY_NAME = 5
"""From version 6 on, TxnOffsetCommit names topics by id only."""
HIGHEST_OF_VERSION_1 = 4
"""Higher versions of EndTxn and TxnOffsetCommit belong to transactions whose epoch rises with every end."""
FEATURE = "transaction.version"
_DEADLY = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)
_TIMED_OUT = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE,
)
"""Codes of coordinators and leaders after a transaction's timeout; a fenced producer gets the same ones."""
_MOVED = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


class TxnState(Enum):
    """The state of a producer's transactions, with its text for errors."""

    NEW = "init_transactions() was not called"
    READY = "no transaction is open"
    OPEN = "a transaction is open"
    FAILED = "the transaction failed and can only be aborted"
    COMMITTING = "whether the transaction was committed is not known: commit again"
    ABORTING = "whether the transaction was aborted is not known: abort again"
    DEAD = "this producer can't go on"


class TransactionManager:
    """The transactions of one producer.

    Attributes:
        state: The current state.
        cause: Why it is FAILED or DEAD.
    """

    def __init__(self, cluster: Cluster, accumulator: Accumulator, sender: Sender, config: ProducerConfig) -> None:
        assert config.transactional_id is not None
        self.id = config.transactional_id
        self.state = TxnState.NEW
        self.cause: KafkaError | None = None
        self._cluster = cluster
        self._accumulator = accumulator
        self._sender = sender
        self._config = config
        self._to = coordinator_of(self.id)
        self._added: set[TopicPartition] = set()
        self._adding: set[TopicPartition] = set()
        self._asked = False
        self._begun = False
        self._fresh_epoch = False
        self._version = 1
        self._adder: Task[None] | None = None
        self._named: set[str] = set()
        self._explained_error: KafkaError | None = None
        self._ends_under_way = self._offset_calls = 0
        self._offsets_added: Promise[None] = Promise()
        self._offset_requests: dict[Awaited, None] = {}
        self._opened_ms = float("inf")
        accumulator.refusal = self._refuse_partition
        sender.gate = self._may_send
        sender.on_lost = self._batch_lost
        sender.explained = self._explained

    # Called by the application.

    async def init(self) -> None:
        """Register as the only producer of this transactional id; an open transaction of an older one is ended.

        Raises:
            KafkaError: The coordinator refused.
        """
        self._expect(TxnState.NEW)
        await self._new_epoch(-1, -1)
        self._choose_version()
        self.state = TxnState.READY

    def begin(self) -> None:
        """Open a transaction at this producer; the coordinator learns of it with the first partition or offsets."""
        self._expect(TxnState.READY)
        self._sender.aborting = None
        self._added.clear()
        self._asked = self._begun = False
        self._opened_ms = self._cluster.runtime.now_ms
        self.state = TxnState.OPEN

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], group: str | GroupMetadata
    ) -> None:
        """Add offsets of a group to the transaction. Without any, nothing is sent, and no transaction begins by it.

        Args:
            offsets: The next offsets to read, as numbers or as objects with `offset`, `metadata` and `leader_epoch`.
            group: The group's id, or the consumer's group metadata, which the coordinator checks.

        Raises:
            KafkaError: UNSUPPORTED_VERSION: the group's coordinator does not support transactions; this one stays open.
        """
        self._expect_open()
        if not offsets:
            return
        check_brokers_coordinate_groups(self._cluster)
        group_id = group if isinstance(group, str) else group.group_id
        if isinstance(group, str):
            await check_group_without_member(self._cluster, group, warned=self._named)
            self._expect_open()
        with self._adding_offsets():
            if self._version < 2:
                await self._asking(lambda: self._add_group(group_id), "add offsets to transaction")
            self._begun = True
            commit = partial(
                self._commit_offsets, offsets, group, group_id, topic_ids_for_offsets(self._cluster, offsets)
            )
            await self._asking(commit, "commit offsets in transaction")

    async def send_member_offsets(
        self, members: Sequence[tuple[GroupMetadata, Mapping[TopicPartition, OffsetAndMetadata | int]]]
    ) -> dict[str, KafkaError]:
        """Add offsets of several members to the transaction, in parallel; return the refusals by member id.

        Each member's offsets have its own member id and generation, because the coordinator checks the member and not
        who owns what. After a refusal the transaction can only be aborted.
        """
        self._expect_open()
        check_brokers_coordinate_groups(self._cluster)
        if any(not who.member_id for who, _ in members):
            raise InvalidInputError("offsets without a member's id are taken from anyone: there is no such member")
        members = [(who, offsets) for who, offsets in members if offsets]
        if not members:
            return {}
        with self._adding_offsets():
            if self._version < 2:
                for group_id in dict.fromkeys(who.group_id for who, _ in members):
                    await self._asking(partial(self._add_group, group_id), "add offsets to transaction")
            self._begun = True
            tasks = {who.member_id: self._cluster.runtime.spawn(self._offsets_of(who, at)) for who, at in members}
            refused = {member_id: why for member_id, task in tasks.items() if (why := await task) is not None}
        for why in refused.values():
            self._fail(why)
            if why.code in _DEADLY or isinstance(why, RetriableError):
                raise why
        return refused

    async def _offsets_of(
        self, who: GroupMetadata, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]
    ) -> KafkaError | None:
        """Commit one member's offsets with the transaction; return the error if that fails, else None."""
        try:
            commit = partial(
                self._commit_offsets, offsets, who, who.group_id, topic_ids_for_offsets(self._cluster, offsets)
            )
            await self._asking(commit, "commit offsets of a member")
        except KafkaError as error:
            return error
        return None

    @contextlib.contextmanager
    def _adding_offsets(self) -> Iterator[None]:
        """Context manager around a call that adds offsets: commit and abort wait until it is over.

        If the call fails or is cancelled, the transaction fails.
        """
        self._offset_calls += 1
        try:
            yield
        except KafkaError as error:
            self._fail(error)
            raise
        except BaseException:
            self._fail_interrupted()
            raise
        finally:
            self._offset_calls -= 1
            if not self._offset_calls:
                self._offsets_added.resolve(None)

    async def wait_offsets_added(self) -> None:
        """Wait until no call or request that adds offsets to the transaction is under way, before it is ended.

        Other threads may make such calls, and an interrupted call may have left its request. The coordinator would add
        their offsets to the next transaction. A request ends by its answer, or after `request_timeout_ms`.

        Raises:
            TimedOutError: A request had no answer within `max_block_ms`.
        """
        until_ms = self._cluster.runtime.now_ms + self._config.max_block_ms
        while self._offset_calls or self._offset_requests:
            if self._offset_requests:
                left_ms = until_ms - self._cluster.runtime.now_ms
                if await self._cluster.runtime.wait_first(*self._offset_requests, timeout_ms=left_ms) is None:
                    text = f"offsets whose call was interrupted had no answer for {self._config.max_block_ms} ms"
                    raise TimedOutError(f"the transaction is not ended yet: {text}; end it again")
                continue
            if self._offsets_added.done:
                self._offsets_added = Promise()
            await self._offsets_added

    @contextlib.contextmanager
    def refusing_records(self) -> Iterator[None]:
        """Context manager that refuses records and offsets of other threads while the transaction is being ended.

        They would belong to no transaction.
        """
        self._ends_under_way += 1
        try:
            yield
        finally:
            self._ends_under_way -= 1

    async def end_transaction(self, *, commit: bool) -> None:
        """Commit or abort the open transaction at its coordinator.

        Before that, everything sent must be delivered or dropped.

        Raises:
            RetriableError: No response; the same call retries.
            KafkaError: The transaction can't be committed: it is FAILED now.
        """
        ending = TxnState.COMMITTING if commit else TxnState.ABORTING
        if self.state is TxnState.FAILED and not commit:
            self._fresh_epoch = True
        elif self.state is not ending:
            self._expect(TxnState.OPEN)
            if commit and self._sender.aborting is not None:  # another thread has dropped records for an abort
                raise error_for(ErrorCode.TRANSACTION_ABORTABLE, "the transaction is being aborted")
        self.state = ending
        self._stop_adding()
        try:
            if self._begun or self._asked:
                await self._asking(lambda: self._end_txn(commit), "end transaction")
                self._asked = self._begun = False
            self._choose_version()
            if self._fresh_epoch:
                identity = self._sender.identity
                await self._new_epoch(identity.producer_id, identity.epoch)
        except RetriableError:
            raise
        except KafkaError as error:
            self._fail(error)
            if not commit:
                self.state = TxnState.DEAD
            elif self._version >= 2 and error is self._explained_error:
                self.state = TxnState.FAILED  # the abort learns the next epoch, or that another producer took over
            raise
        self._added.clear()
        self.cause = None
        self.state = TxnState.READY

    async def abort_at_close(self) -> None:
        """Abort the open transaction when the producer closes, after calls that still add offsets."""
        await self.wait_offsets_added()
        await self.end_transaction(commit=False)

    def fail_unsent_records(self) -> list[Batch]:
        """Fail all waiting batches for an abort, and retry none in flight; return the batches to `run_callbacks`."""
        reason = self.cause or error_for(ErrorCode.TRANSACTION_ABORTABLE, "the transaction is aborted")
        self._sender.aborting = reason
        dropped = self._accumulator.fail_unsent_batches(reason)
        if any(batch.attempts for batch in dropped):
            self._fresh_epoch = True  # their sequence numbers may have been used
        return dropped

    # Hooks of accumulator and sender.

    def _refuse_partition(self, partition: TopicPartition) -> None:
        if self.state is not TxnState.OPEN or self._ends_under_way:
            self._expect_open()

    def _may_send(self, partition: TopicPartition) -> bool:
        """Return whether records may be sent to a partition: the coordinator has added it to the transaction.

        If it has not, start to add it. In version 2 a Produce adds it by itself. Under the accumulator's lock.
        """
        if self._version >= 2:
            self._begun = True
            return True
        if partition in self._added:
            return True
        if partition not in self._adding:
            self._adding.add(partition)
            if self._adder is None or self._adder.done:
                self._adder = self._cluster.spawn_essential_task(
                    self._add_partitions(), "add partitions to transaction"
                )
        return False

    def _batch_lost(self, error: KafkaError) -> None:
        if self.state is TxnState.OPEN or error.code in _DEADLY:
            self._fail(error)

    # Internals.

    def _expect(self, state: TxnState) -> None:
        if self.state is state:
            return
        if self.cause is not None:
            raise error_for(self.cause.code, f"{self.state.value}: {self.cause.message}")
        raise InvalidInputError(f"not possible now: {self.state.value}", ErrorCode.INVALID_TXN_STATE)

    def _expect_open(self) -> None:
        """Raise an error unless a transaction is open and not being ended."""
        self._expect(TxnState.OPEN)
        if self._ends_under_way:
            raise InvalidInputError("not possible now: the transaction is being ended", ErrorCode.INVALID_TXN_STATE)

    def _explained(self, error: KafkaError) -> KafkaError:
        """Replace an error by one that explains it, if the transaction was open longer than `transaction.timeout.ms`.

        Errors of other causes are returned unchanged.
        """
        open_ms, limit_ms = self._cluster.runtime.now_ms - self._opened_ms, self._config.transaction_timeout_ms
        if error.code not in _TIMED_OUT or open_ms < limit_ms or error is self._explained_error:
            return error
        why = f"the transaction was open for {open_ms:.0f} ms and transaction.timeout.ms is {limit_ms}"
        why += f": the coordinator ended it, unless another producer took {self.id!r} over"
        self._explained_error = type(error)(f"{why}: {error.message}", error.code).with_traceback(error.__traceback__)
        return self._explained_error

    def _fail(self, error: KafkaError) -> None:
        self.cause = error
        self.state = TxnState.DEAD if error.code in _DEADLY else TxnState.FAILED

    def _fail_interrupted(self) -> None:
        """Fail the transaction after a cancelled call: a commit could leave the offsets out."""
        if self.state is TxnState.OPEN:
            text = "the call that adds offsets was interrupted, and the transaction may have them or not"
            self._fail(error_for(ErrorCode.TRANSACTION_ABORTABLE, text))

    def _choose_version(self) -> None:
        """Choose the next transaction's version: the finalized level of `transaction.version`, at most 2.

        After a rise of the version, the producer needs another epoch.
        """
        before, self._version = self._version, min(2, self._cluster.connections.features.get(FEATURE, 1))
        self._sender.implicit = self._version >= 2
        if before < self._version and self.state is not TxnState.NEW:
            self._fresh_epoch = True

    def _stop_adding(self) -> None:
        """Stop adding partitions before the transaction ends."""
        self._adding.clear()
        if self._adder is not None:
            self._adder.cancel()

    async def _asking(self, attempt: Callable[[], Awaitable[None]], what: str) -> None:
        try:
            await self._cluster.retry_call(
                lambda: self._retry_while_concurrent(attempt), what, self._config.max_block_ms
            )
        except KafkaError as error:
            raise self._explained(error) from None

    async def _retry_while_concurrent(self, attempt: Callable[[], Awaitable[None]]) -> None:
        """Repeat a request every 20 ms while the answer is CONCURRENT_TRANSACTIONS. Other errors are raised.

        The coordinator answers so while it writes the end of the previous transaction.
        """
        while True:
            try:
                return await attempt()
            except KafkaError as error:
                if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                    raise
                await self._cluster.runtime.sleep(min(SOON_MS, self._config.retry_backoff_ms))

    async def _new_epoch(self, producer_id: int, epoch: int) -> None:
        request = InitProducerIdRequest(
            transactional_id=self.id,
            transaction_timeout_ms=self._config.transaction_timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
        )

        async def new_epoch_once() -> None:
            try:
                await self._sender.init_producer_id(self._to, request)
                self._fresh_epoch = False
            except KafkaError as error:
                self._forget_coordinator(error)
                raise

        await self._asking(new_epoch_once, "init transactions")

    def _forget_coordinator(self, error: KafkaError) -> None:
        if error.code in _MOVED or isinstance(error, RetriableError):
            self._cluster.forget_coordinator(self._to)

    def _check_code(self, code: int, what: str) -> None:
        if code:
            error = error_for(code, f"{what}: {ErrorCode.of(code).text}")
            self._forget_coordinator(error)
            raise error

    async def _add_partitions(self) -> None:
        """Add partitions at the coordinator until it has all that are needed."""
        try:
            while self._adding - self._added:
                await self._asking(self._add_once, "add partitions to transaction")
                self._sender.wake_sender()
        except Exception as error:  # noqa: BLE001 - callers that send or commit get any error
            self._fail(logged_kafka_error("add partitions to transaction", error))
            for batch in self.fail_unsent_records():
                batch.run_callbacks()
            self._sender.wake_sender()

    async def _add_once(self) -> None:
        wanted = sorted(self._adding - self._added)
        topics: dict[str, list[int]] = {}
        for partition in wanted:
            topics.setdefault(partition.topic, []).append(partition.partition)
        identity = self._sender.identity
        named = [
            AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=parts)
            for name, parts in topics.items()
        ]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.epoch,
            v3_and_below_topics=named,
        )
        self._asked = True
        answer = await self._cluster.send(Between(request, highest=HIGHEST_ADD_PARTITIONS), self._to)
        refusals = [
            (ErrorCode.of(part.partition_error_code), f"{topic.name}-{part.partition_index}")
            for topic in answer.results_by_topic_v3_and_below
            for part in topic.results_by_partition
            if part.partition_error_code
        ]
        if refusals:
            self._check_code(*min(refusals, key=_importance))
        self._added.update(wanted)
        self._begun = True

    async def _send_offset_request(self, request: RequestMessage[R] | Between[R], to: Coordinator) -> R:
        """Send a request that adds offsets; once sent, it stays in flight even if the caller is cancelled.

        Commit and abort wait for its answer. In transaction version 2 they need not: ending the transaction raises the
        epoch, and the coordinator refuses late requests.
        """
        if self._version >= 2:
            return await self._cluster.send(request, to)
        left: Promise[None] = Promise()
        sending = self._cluster.send(request, to, leaving=lambda: left.resolve(None))
        task = self._cluster.runtime.spawn(sending, "offsets of a transaction")
        task.mark_handled()
        self._offset_requests[task] = None
        task.on_done(lambda _: self._offset_requests.pop(task))
        try:
            return await task
        finally:
            if not left.done:
                task.cancel()

    async def _add_group(self, group_id: str) -> None:
        identity = self._sender.identity
        request = AddOffsetsToTxnRequest(
            transactional_id=self.id, producer_id=identity.producer_id, producer_epoch=identity.epoch, group_id=group_id
        )
        self._asked = True
        answer = await self._send_offset_request(request, self._to)
        self._check_code(answer.error_code, f"group {group_id}")

    async def _commit_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group: str | GroupMetadata,
        group_id: str,
        ids: Mapping[str, UUID],
    ) -> None:
        """Commit once; `ids` are the topic ids of the offsets, empty when one is unknown.

        Raises:
            KafkaError: RESOURCE_NOT_FOUND: a topic was deleted or recreated, and the offsets are not valid in it.
        """
        to = Coordinator(group_id)
        newest = None if ids else HIGHEST_OFFSETS_BY_NAME
        request = self._offset_request(offsets, group, group_id, ids)
        highest = newest if self._version >= 2 else HIGHEST_OF_VERSION_1
        answer = await self._send_offset_request(Between(request, highest=highest), to)
        names = {topic_id: topic for topic, topic_id in ids.items()}
        refusals = [
            (ErrorCode.of(part.error_code), topic.name or names.get(topic.topic_id, ""), part.partition_index)
            for topic in answer.topics
            for part in topic.partitions
            if part.error_code
        ]
        if not refusals:
            return
        code, name, number = min(refusals, key=lambda refusal: is_code_retriable(refusal[0]))
        error = error_for(code, f"offset of {name}-{number}: {code.text}")
        if code is ErrorCode.GROUP_ID_NOT_FOUND:
            raise CommitFailedError(f"there is no group {group_id!r} any more: {error.message}", code)
        unknown = {name for code, name, _ in refusals if code is ErrorCode.UNKNOWN_TOPIC_ID} if code.retriable else ()
        for name in unknown:
            if await is_topic_gone(self._cluster, name, ids):
                raise NotFoundError(f"offsets for group {group_id!r}: topic {name!r} was deleted since")
        if code in _MOVED:
            self._cluster.forget_coordinator(to)
        raise error

    def _offset_request(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group: str | GroupMetadata,
        group_id: str,
        ids: Mapping[str, UUID],
    ) -> TxnOffsetCommitRequest:
        topics: dict[str, TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic] = {}
        for partition, given in sorted(offsets.items()):
            topic = topics.setdefault(
                partition.topic,
                TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                    name=partition.topic, topic_id=ids.get(partition.topic, NO_TOPIC_ID)
                ),
            )
            part = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                partition_index=partition.partition,
                committed_offset=given if isinstance(given, int) else given.offset,
                committed_leader_epoch=-1 if isinstance(given, int) else given.leader_epoch,
                committed_metadata="" if isinstance(given, int) else given.metadata,
            )
            topic.partitions.append(part)
        identity = self._sender.identity
        request = TxnOffsetCommitRequest(
            transactional_id=self.id,
            group_id=group_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            topics=list(topics.values()),
        )
        if not isinstance(group, str):
            request.generation_id_or_member_epoch = group.generation_id
            request.member_id = group.member_id
            request.group_instance_id = group.group_instance_id
        return request

    async def _end_txn(self, commit: bool) -> None:
        identity = self._sender.identity
        request = EndTxnRequest(
            transactional_id=self.id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            committed=commit,
        )
        highest = None if self._version >= 2 else HIGHEST_OF_VERSION_1
        answer = await self._cluster.send(Between(request, highest=highest), self._to)
        if answer.error_code == ErrorCode.INVALID_TXN_STATE and not commit and not self._begun:
            self._fresh_epoch = True  # the request was not processed, and must have no effect later either
            return
        self._check_code(answer.error_code, "end transaction")
        if answer.producer_id >= 0:
            self._sender.adopt_identity(answer.producer_id, answer.producer_epoch)
            self._fresh_epoch = False


def _importance(refusal: tuple[ErrorCode, str]) -> int:
    """Return the sort key of refusals in one response: errors that no retry cures come first.

    OPERATION_NOT_ATTEMPTED comes last: it says only that another error is the reason.
    """
    code = refusal[0]
    return 2 if code is ErrorCode.OPERATION_NOT_ATTEMPTED else int(code.retriable)
