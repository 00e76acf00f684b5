"""Faults of coordinators over Kafka, one each, to show that the checker named beside it detects the fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from kohort.cluster.journal import kafka_journal
from kohort.cluster.journal.journal_partition import JournalPartition, JournalUnavailable
from kohort.cluster.journal.reading import JournalReader
from kohort.cluster.journal.term import AcknowledgedAppend, JournalTerm, JournalWriter, bump_producer_epoch
from kohort.cluster.zookeeper import service as zookeeper_door
from kohort.cluster.zookeeper.session import ZNode
from kohort.coordinator import shard
from kohort.coordinator.shard import Appends
from kohort.errors import FencedError, KafkaError
from kohort.groups import failure_detector
from kohort.groups.effects import PingConsumer, StartConsumer, StopConsumer
from kohort.journal.sealing import encode_unbounded_batch
from kohort.wire.data import ListOffsetsRequest
from simulation.checkers.group_checkers import OwnershipChecker
from simulation.checkers.offset_checkers import DurabilityChecker
from simulation.checkers.property import Checker
from simulation.mutants.disk_mutants import DiskMutant
from simulation.mutants.swapped import swapped
from simulation.remote.checkers import CoordinationChecker, KeptAliveChecker, OvertakenChecker, WholeAppendChecker
from simulation.remote.kafka import LATEST
from simulation.remote.zookeeper import VirtualSession, Watch


class ReadsBeforeItFences(DiskMutant):
    """A coordinator that reads the journal first and writes its fence afterwards."""

    where, name = JournalTerm, "run"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a takeover in that order."""

        async def run(term: JournalTerm) -> None:
            place, figures = term._place, term._metrics
            try:
                end, reading = await latest(place), JournalReader(place)
                while reading.offset < end:
                    view = await reading.fetch()
                    if view is not None:
                        await term._handover.queue_for_decoding(view)
                        term._owner.on_records_available()
                await term._handover.wait_decoded()
                writer = JournalWriter(place, await bump_producer_epoch(place))
                figures.producer_id, figures.epoch = writer.identity.producer_id, writer.identity.epoch
                figures.fence_offset = await term._write_fence(writer, writer.identity.producer_id)
                writer.expected = figures.fence_offset + 1
                term.loaded = True
                term._owner.on_records_available()
                await term._serve_term(writer)
            except (KafkaError, OSError) as error:
                term._over(error)

        return run


async def latest(place: JournalPartition) -> int:
    """Return the current end of the journal."""
    part = ListOffsetsRequest.ListOffsetsPartition(partition_index=place.index, timestamp=LATEST)
    topic = ListOffsetsRequest.ListOffsetsTopic(name=place.topic.name, partitions=[part])
    request = ListOffsetsRequest(replica_id=-1, topics=[topic], timeout_ms=1_000)
    answer = await place.cluster.send(request, await place.leader(1_000), timeout_ms=1_000, channel=place.channel)
    (found,) = answer.topics[0].partitions
    if found.error_code:
        raise JournalUnavailable("no leader")
    return found.offset


class TakesTimeoutsForSuccess(DiskMutant):
    """A coordinator that treats an append with an unknown outcome as written."""

    where, name = JournalWriter, "_send_produce"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that gives the expected offset."""

        async def ask(writer: JournalWriter, batch: bytes) -> int:
            try:
                return int(await real(writer, batch))
            except KafkaError as error:
                if isinstance(error, FencedError) or writer.expected is None:
                    raise
                return writer.expected

        return ask


class WritesHalves(DiskMutant):
    """A coordinator that writes one event's records in two batches, one after the other."""

    @classmethod
    @contextmanager
    def planted(cls) -> Iterator[None]:
        """Write the second half in a batch of its own."""
        write = JournalWriter.write
        rest: dict[int, tuple[bytes, int]] = {}

        def halved(records: Any) -> tuple[bytes, int]:
            half = len(records) // 2
            if not half:
                return encode_unbounded_batch(records)
            payload, count = encode_unbounded_batch(records[:half])
            payload = bytes(bytearray(payload))
            rest.clear()
            rest[id(payload)] = encode_unbounded_batch(records[half:])
            return payload, count

        async def both(writer: JournalWriter, payload: bytes, count: int, now_ms: int) -> AcknowledgedAppend:
            behind = rest.pop(id(payload), None)
            written = await write(writer, payload, count, now_ms)
            return written if behind is None else await write(writer, *behind, now_ms)

        with swapped(kafka_journal, "encode_unbounded_batch", halved), swapped(JournalWriter, "write", both):
            yield


class HeartbeatsWithoutProof(DiskMutant):
    """A coordinator that answers requests without writes without checking its ownership proof."""

    where, name = Appends, "_needs_ownership_proof"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a check that covers only reads."""
        return lambda self, steps: bool(self._unproven) or shard._reads(steps)


class PushesWithoutProof(DiskMutant):
    """A coordinator that pings, stops and starts consumers without checking its ownership proof."""

    where, name = Appends, "_needs_ownership_proof"
    unproved: ClassVar[tuple[type, ...]] = (PingConsumer, StopConsumer, StartConsumer)

    @classmethod
    def swap(cls, real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a check that exempts these server requests."""

        def needs_proof(self: Appends, steps: Any) -> bool:
            spared = [isinstance(push.value, cls.unproved) for _, outcome in steps for push in outcome.pushes]
            answers = any(outcome.replies for _, outcome in steps)
            return bool(real(self, steps)) and (answers or bool(self._unproven) or not (spared and all(spared)))

        return needs_proof


class StopsWithoutProof(PushesWithoutProof):
    """A coordinator that stops consumers without checking its ownership proof."""

    unproved = (StopConsumer,)


class ReadsWithoutProof(DiskMutant):
    """A coordinator that checks its ownership proof for reads only as strictly as for heartbeats."""

    where, name = shard, "_reads"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a check for which no request is a read."""
        return lambda steps: False


class TakesLateAnswersForProof(DiskMutant):
    """A coordinator that counts an acknowledgement as proof from its arrival, whenever the append was sent."""

    where, name = Appends, "_proved"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that treats the append as sent now."""

        def proved(self: Appends, steps: Any) -> Any:
            self._sending_at = self._elapsed_ms()
            return real(self, steps)

        return proved


class EndsSessionsEarly(DiskMutant):
    """A coordinator that ends sessions after a takeover as if the replaced one could not have answered the members."""

    where, name = failure_detector.MonitoredGroup, "extend_session"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a load that extends no session."""
        return lambda context, membership, session: False


class TakesEarlierNodesForItsOwn(DiskMutant):
    """A coordinator that treats the node of its earlier session as its own."""

    where, name = zookeeper_door, "is_of_session"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that accepts a node with the same contents."""

        def is_of(node: ZNode, session: int) -> bool:
            return bool(real(node, session)) or b"endpoints" in node.data

        return is_of


class SetsWatchesOnce(DiskMutant):
    """A coordinator that sets the watch on a node only when it first reads it."""

    where, name = VirtualSession, "_handed"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does not set the watch again on that connection."""

        def handed(session: VirtualSession, watch: Watch | None, path: str) -> Watch | None:
            seen = session.__dict__.setdefault("seen", set())
            if (session._connection, path) in seen:
                return None
            if watch is not None:
                seen.add((session._connection, path))
            return real(session, watch, path)  # type: ignore[no-any-return]

        return handed


REMOTE_MUTANTS: dict[type[DiskMutant], type[Checker]] = {
    ReadsBeforeItFences: DurabilityChecker,
    TakesTimeoutsForSuccess: DurabilityChecker,
    WritesHalves: WholeAppendChecker,
    HeartbeatsWithoutProof: OvertakenChecker,
    PushesWithoutProof: OwnershipChecker,
    StopsWithoutProof: OwnershipChecker,
    ReadsWithoutProof: OvertakenChecker,
    TakesLateAnswersForProof: OvertakenChecker,
    EndsSessionsEarly: KeptAliveChecker,
    TakesEarlierNodesForItsOwn: CoordinationChecker,
    SetsWatchesOnce: CoordinationChecker,
}
