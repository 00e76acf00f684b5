"""The log store of a data folder: opens, creates, deletes and maintains the topics' partitions."""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from kohort.errors import CorruptDataError, ErrorCode, InvalidInputError, KafkaError, NotFoundError, RetriableError
from kohort.ids import TopicPartition
from kohort.io.closing import ClosedOnExit
from kohort.log import checkpoints, folder
from kohort.log.catalog import (
    Catalog,
    CatalogTopic,
    TopicDraft,
    TopicPlan,
    effective_config,
    valid_stored_config,
    write_catalog,
)
from kohort.log.checkpoints import CLEANED, LOG_STARTS, RECOVERY_POINTS
from kohort.log.compaction import Compaction, OffLoop
from kohort.log.config import FLUSH_NEVER_MS, LogConfig, StoreLimits
from kohort.log.cooperative import LoopBudget, Search, Steps, run_steps
from kohort.log.damage import DamagedError, LogDamage
from kohort.log.files import FILES_OWN, FileCache
from kohort.log.filesystem import SYSTEM, FileSystem, ReadBuffer, folder_mode, is_internal
from kohort.log.markers import Marker
from kohort.log.partition import PartitionLog
from kohort.log.recovery import OpenOptions
from kohort.log.results import AppendResult, Isolation, ReadResult, TimestampOffset
from kohort.log.retention import delete_old_segments, flush_idle_segments, roll_for_compaction
from kohort.log.strays import DELETED, remove_deleted_topic_folders
from kohort.log.validator import CheckedBatches

# -- A partition whose files can't be opened: it rejects all requests, so that the others can be served

_FAR = 2**63 - 1


class UnreadableLog(PartitionLog):
    """A log that could not be opened: reads and writes raise errors, and its files are never written.

    Attributes:
        damage: why the log could not be opened.
    """

    __slots__ = ("damage",)
    readable = False

    def __init__(self, path: Path, config: LogConfig, options: OpenOptions, error: Exception) -> None:
        super().__init__(path, config, options)
        self.missing = False
        self.log_start_offset = options.log_start_offset or 0
        self.end_offset = self.flushed_offset = max(options.known_end, self.log_start_offset)
        self.cleaned_offset = options.cleaned_offset
        reason = f"the log can't be opened ({error})"
        self.damage = LogDamage(path, 0, None, self.log_start_offset, None, reason)

    def check_readable(self) -> None:
        """Raise DamagedError, because the log could not be opened."""
        self._refuse_read()

    def _refuse_read(self) -> NoReturn:
        raise DamagedError(self.damage)

    def _refuse_write(self) -> NoReturn:
        raise RetriableError(f"nothing can be written: {self.damage.describe()}", ErrorCode.KAFKA_STORAGE_ERROR)

    def append(
        self,
        batches: ReadBuffer,
        now_ms: int,
        *,
        from_client: bool = True,
        budget: LoopBudget | None = None,
        from_zero: bool = False,
    ) -> AppendResult:
        """Raise RetriableError (KAFKA_STORAGE_ERROR), because the log could not be opened."""
        self._refuse_write()

    def append_validated(
        self, checked: CheckedBatches, now_ms: int, *, sequences: bool = True, from_zero: bool = False
    ) -> AppendResult:
        """Raise RetriableError (KAFKA_STORAGE_ERROR), because the log could not be opened."""
        self._refuse_write()

    def append_marker(self, marker: Marker, now_ms: int) -> AppendResult:
        """Raise RetriableError (KAFKA_STORAGE_ERROR), because the log could not be opened."""
        self._refuse_write()

    def advance_leader_epoch(self, epoch: int) -> None:
        """Raise RetriableError (KAFKA_STORAGE_ERROR), because the log could not be opened."""
        self._refuse_write()

    def delete_records(self, before_offset: int) -> int:
        """Raise RetriableError (KAFKA_STORAGE_ERROR), because the log could not be opened."""
        self._refuse_write()

    def read(
        self, offset: int, max_bytes: int, isolation: Isolation = Isolation.READ_UNCOMMITTED, *, min_one: bool = True
    ) -> ReadResult:
        """Raise DamagedError, because the log could not be opened."""
        self._refuse_read()

    def iterate_batches(self, offset: int, read_bytes: int = 1 << 20) -> Iterator[memoryview]:
        """Raise DamagedError, because the log could not be opened."""
        self._refuse_read()

    def offset_for_timestamp(
        self, timestamp: int, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> TimestampOffset:
        """Raise DamagedError, because the log could not be opened."""
        self._refuse_read()

    def search_by_time(
        self, timestamp: int, isolation: Isolation, budget: LoopBudget | None = None
    ) -> Search[TimestampOffset]:
        """Raise DamagedError, because the log could not be opened."""
        self._refuse_read()

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Answer that nothing was truncated: readers keep their positions, since the log may become readable again."""
        return leader_epoch, _FAR

    def truncate_to(self, offset: int) -> None:
        """Raise RetriableError (KAFKA_STORAGE_ERROR), because the log could not be opened."""
        self._refuse_write()

    def flush(self, upto: int | None = None) -> None:
        """Do nothing, because nothing can be written to a log that could not be opened."""

    def close(self) -> None:
        """Do nothing, because a log that could not be opened has no open files."""


# -- Checkpoints of a data folder: the recovery point, log start and compaction progress of each log


@dataclass(frozen=True, slots=True)
class StoreCheckpoints:
    """The store's recovery points, log start offsets and compacted offsets; None for each file that can't be read."""

    synced: Mapping[TopicPartition, int] | None
    starts: Mapping[TopicPartition, int] | None
    cleaned: Mapping[TopicPartition, int] | None

    @classmethod
    def read(cls, folder: Path, fs: FileSystem = SYSTEM) -> StoreCheckpoints:
        """Read the checkpoint files of recovery points, log starts and compacted offsets.

        Raises:
            OSError: a resource is missing that another attempt may have.
        """
        checksums = checkpoints.read_checksums(folder, fs)
        names = RECOVERY_POINTS, LOG_STARTS, CLEANED
        return cls(*(checkpoints.read_offsets_if_valid(folder / name, checksums, fs=fs) for name in names))

    def topics(self) -> set[str]:
        """Return the names of all topics in the checkpoints."""
        return {tp.topic for file in (self.synced, self.starts, self.cleaned) for tp in file or ()}

    def log_open_options(self, tp: TopicPartition, *, same_boot: bool) -> OpenOptions:
        """Return the options for opening one log. `same_boot`: the machine kept running since the log was written."""
        synced = (self.synced or {}).get(tp, 0)
        return OpenOptions(
            verified_offset=None if same_boot else synced,
            known_end=synced,
            synced_unknown=self.synced is None,
            log_start_offset=(self.starts or {}).get(tp),
            cleaned_offset=(self.cleaned or {}).get(tp, 0),
            cleaned_unknown=self.cleaned is None,
        )


def write_recovery_points(
    folder: Path, logs: Iterable[tuple[TopicPartition, PartitionLog]], fs: FileSystem = SYSTEM
) -> None:
    """Write the recovery points and compaction progress of all logs to their checkpoint files.

    Only changed files are written. A power loss leaves the new or the old values.

    Raises:
        OSError: a file could not be written.
    """
    listed = list(logs)
    synced = {tp: log.flushed_offset for tp, log in listed if log.flushed_offset}
    cleaned = {tp: log.cleaned_offset for tp, log in listed if log.cleaned_offset}
    checkpoints.write_offset_checkpoints(folder, {RECOVERY_POINTS: synced, CLEANED: cleaned}, fs)


log = logging.getLogger("kohort.log")

_SLICE_S = 0.01
_ROUND_MS = 5_000


def _is_due(since_ms: int, now_ms: int, interval_ms: int) -> bool:
    """Return whether an interval has passed, or the clock was set back: waiting until it catches up may take years."""
    return not 0 <= now_ms - since_ms < interval_ms


def _error_naming_partition(tp: TopicPartition, error: OSError) -> OSError:
    return OSError(error.errno, f"partition {tp}: {error}")


class LogStore(ClosedOnExit):
    """All logs of one data folder. A context manager; `close()` records a clean shutdown.

    Attributes:
        topics: all topics by name, in the order of creation.
        topics_by_id: all topics by id.
        compact_in: runs the work on large batches in another thread; None: compaction does it in its steps.
    """

    def __init__(
        self,
        data_dir: Path | str,
        *,
        defaults: LogConfig | None = None,
        limits: StoreLimits | None = None,
        node_id: int = 0,
        cluster_id: str | None = None,
    ) -> None:
        """Lock the folder, complete interrupted changes, and open every partition with recovery.

        Raises:
            InvalidInputError: another broker has the folder, or it is no data folder; the text says what to do.
            CorruptDataError: the catalog can't be read.
        """
        self.path = Path(data_dir)
        self.defaults = defaults or LogConfig()
        self.limits = limits or StoreLimits()
        self._owned = folder.lock_data_folder(self.path, node_id, cluster_id)
        self.cluster_id = self._owned.cluster_id
        self._logs: dict[tuple[str, int], PartitionLog] = {}
        self._files = FileCache(self.limits.open_files, self.limits.lent_files)
        self._doomed: deque[Path] = deque()
        self._unflushed: dict[tuple[str, int], int] = {}
        self._upkeep: Iterator[bool] | None = None
        self._round_ms = 0
        self._retention_ms = int(time.time() * 1000)
        self._producers_ms = 0
        self._closed = False
        self.compact_in: OffLoop | None = None
        self._logged: set[str] = set()
        self._not_compacted: dict[TopicPartition, tuple[PartitionLog, int]] = {}
        try:
            self._open_all()
        except BaseException:
            self._owned.release(clean=False)
            raise

    # -- opening

    def _open_all(self) -> None:
        catalog = Catalog.read(self.path)
        if catalog is None:
            found = sorted(p.name for p in self.path.iterdir() if (p / checkpoints.PARTITION_METADATA).exists())
            if found:
                raise CorruptDataError(f"{self.path} holds partitions ({found[0]} …) but no catalog of topics")
            catalog = Catalog(self.path, {})
            write_catalog(self.path, {})
        if catalog.topics and not self._owned.clean and not self._owned.same_boot:
            catalog.record_power_loss()
        self._catalog = catalog
        topics = self.topics = catalog.topics
        self.topics_by_id = catalog.by_id
        ids, stay = remove_deleted_topic_folders(self.path, self.topics, catalog.removed)
        catalog.forget_removed(catalog.removed - stay)
        points = StoreCheckpoints.read(self.path)
        self._logged = points.topics() - topics.keys()
        began = time.monotonic()
        for topic in topics.values():
            config = valid_stored_config(topic.name, self.defaults, topic.configs)
            for number in range(topic.partitions):
                tp = TopicPartition(topic.name, number)
                known = replace(
                    points.log_open_options(tp, same_boot=self._owned.same_boot),
                    epoch_without_folder=catalog.power_losses,
                    topic_id=None if ids.get(str(tp)) == topic.id else topic.id,
                )
                self._open(tp, config, known)
        owned = self._owned
        owned.record_logs_open()
        how = "new" if owned.fresh else "closed in order" if owned.clean else "recovered after an unclean end"
        log.info(
            "data folder %s opened (%s): %d partition logs in %.0f ms",
            self.path,
            how,
            len(self._logs),
            1000 * (time.monotonic() - began),
        )

    def _open(self, tp: TopicPartition, config: LogConfig, known: OpenOptions) -> None:
        options = self._with_shared_options(known)
        path = self.path / str(tp)
        if is_internal(path):  # a release that gave every user the right to read may have made it
            with contextlib.suppress(OSError):
                path.chmod(folder_mode(path))
        try:
            opened = PartitionLog.open(path, config, options, now_ms=int(time.time() * 1000))
        except (OSError, CorruptDataError) as error:
            if isinstance(error, OSError) and error.errno not in FILES_OWN:
                raise
            self._logs[tp] = refused = UnreadableLog(path, config, options, error)
            log.error("[partition %s] not served, the other partitions are: %s", tp, refused.damage.describe())
            return
        found = opened.recovery
        if found.truncated_bytes or found.rebuilt_indexes:
            log.warning(
                "[partition %s] recovered: truncated %d bytes, rebuilt %s",
                tp,
                found.truncated_bytes,
                found.rebuilt_indexes or "nothing",
            )
        self._logs[tp] = opened

    def _with_shared_options(self, known: OpenOptions) -> OpenOptions:
        """Return one partition's options for opening, completed by those that hold for the whole folder."""
        return replace(
            known, clean=self._owned.clean, persist=self._write_bounds, files=self._files, limits=self.limits
        )

    # -- finding

    def partition(self, tp: TopicPartition) -> PartitionLog:
        """Return the log of a partition.

        Raises:
            NotFoundError: there is no such partition (UNKNOWN_TOPIC_OR_PARTITION).
        """
        found = self._logs.get(tp)
        if found is None:
            raise NotFoundError(f"there is no partition {tp}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return found

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        """Return a log or None with one dictionary lookup, for the produce and fetch paths."""
        return self._logs.get((topic, partition))

    def partitions(self) -> Iterator[tuple[TopicPartition, PartitionLog]]:
        """Yield all logs in the catalog's order. The catalog may change in the meantime."""
        for topic in list(self.topics.values()):
            for number in range(topic.partitions):
                found = self._logs.get((topic.name, number))
                if found is not None:
                    yield TopicPartition(topic.name, number), found

    def topic(self, name: str) -> CatalogTopic:
        """Return the catalog's entry of a topic.

        Raises:
            NotFoundError: there is no such topic (UNKNOWN_TOPIC_OR_PARTITION).
        """
        found = self.topics.get(name)
        if found is None:
            raise NotFoundError(f"there is no topic {name!r}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return found

    def log_config(self, name: str) -> LogConfig:
        """Return a topic's settings in effect."""
        return valid_stored_config(name, self.defaults, self.topic(name).configs)

    # -- changing the catalog

    def create_topic(
        self, name: str, partitions: int, configs: Mapping[str, str] | None = None, topic_id: uuid.UUID | None = None
    ) -> CatalogTopic:
        """Create a topic; durable when this returns.

        Raises:
            InvalidInputError: INVALID_TOPIC_EXCEPTION, INVALID_PARTITIONS, INVALID_CONFIG, TOPIC_ALREADY_EXISTS,
                POLICY_VIOLATION (a limit of `StoreLimits`).
        """
        (made,) = run_steps(self.create_topics_in_steps([TopicPlan(name, partitions, dict(configs or {}), topic_id)]))
        if isinstance(made, KafkaError):
            raise made
        return made

    def create_topics_in_steps(
        self, plans: Sequence[TopicPlan], unseen: Callable[[], tuple[int, ...]] = tuple
    ) -> Steps[list[CatalogTopic | KafkaError]]:
        """Create topics, each completely or not at all. None is visible before all exist.

        Only the catalog is written: a partition's folder is created with its first record.

        Args:
            plans: the topics to create.
            unseen: returns the group journals that are not loaded (`CatalogTopic.unseen`) at the moment of creation.

        Returns:
            For each plan the durable topic, or the error as in `create_topic`.

        Raises:
            OSError: the catalog could not be written; no topic was created.
        """
        return (yield from self._drafting([partial(self._new, plan) for plan in plans], unseen=unseen))

    def _new(self, plan: TopicPlan, draft: TopicDraft[PartitionLog]) -> CatalogTopic:
        self._check_plan(plan, draft)
        draft.names.add(plan.name)
        return CatalogTopic(plan.name, plan.id or checkpoints.new_id(), plan.partitions, plan.configs)

    def _drafting(
        self,
        makers: Sequence[Callable[[TopicDraft[PartitionLog]], CatalogTopic]],
        *,
        unseen: Callable[[], tuple[int, ...]] = tuple,
        validate_only: bool = False,
    ) -> Steps[list[CatalogTopic | KafkaError]]:
        """Create or grow topics in steps: draft each, open the logs of new partitions, then commit to the catalog."""
        found: list[CatalogTopic | KafkaError] = []
        draft: TopicDraft[PartitionLog] = TopicDraft()
        defaults = self.defaults
        for make in makers:
            try:
                topic = make(draft)
            except KafkaError as error:
                found.append(error.with_traceback(None))  # the traceback's frames reference all the logs
                continue
            found.append(topic)
            if not validate_only:
                draft.topics[topic.name] = topic
                yield from self._open_new(topic, draft.logs)
        settled = defaults is self.defaults
        for name, topic in draft.topics.items():
            known = self.topics.get(name)
            if known is None:
                draft.topics[name] = replace(topic, unseen=unseen())
            else:  # the topic may have been altered between two steps
                draft.topics[name] = replace(known, partitions=topic.partitions)
                settled = settled and known.configs is topic.configs
        if draft.topics:
            self._commit(draft.topics, draft.logs, settled=settled)
        return [draft.topics.get(topic.name, topic) if isinstance(topic, CatalogTopic) else topic for topic in found]

    def check_topic(self, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        """Check whether `create_topic` would reject a topic (`validate_only`)."""
        self._check_plan(TopicPlan(name, partitions, configs or {}), TopicDraft())

    def _check_plan(self, plan: TopicPlan, beside: TopicDraft[PartitionLog]) -> None:
        """Reject a plan for a new topic that is invalid, or conflicts with existing topics or others of the request."""
        self._catalog.names.check(plan.name)
        beside.names.check(plan.name)
        beside.check_partitions(plan.name, plan.partitions, plan.partitions, len(self._logs), self.limits)
        if len(self.topics) + len(beside.topics) >= self.limits.topics:
            raise InvalidInputError(
                f"there are {self.limits.topics} topics, which is the limit", ErrorCode.POLICY_VIOLATION
            )
        effective_config(self.defaults, plan.configs)

    def _open_new(self, topic: CatalogTopic, logs: dict[tuple[str, int], PartitionLog]) -> Steps[None]:
        """Add the logs of a topic's new partitions to `logs`, in steps."""
        config = effective_config(self.defaults, topic.configs)
        first = self.topics[topic.name].partitions if topic.name in self.topics else 0
        for number in range(first, topic.partitions):
            tp = TopicPartition(topic.name, number)
            known = OpenOptions(topic_id=topic.id, fresh=True)
            logs[tp] = PartitionLog.open(self.path / str(tp), config, self._with_shared_options(known))
            yield

    def _commit(
        self, topics: Mapping[str, CatalogTopic], logs: Mapping[tuple[str, int], PartitionLog], *, settled: bool
    ) -> None:
        """Write new or changed topics to the catalog, then make them visible.

        `settled`: their logs have the settings already.
        """
        if not self._logged.isdisjoint(topics):  # what is said of an earlier topic of a name is not this one's
            self._write_bounds()
            self._logged.clear()
        self._catalog.put_topics(topics)
        self._logs.update(logs)
        for topic in () if settled else topics.values():
            self._reconfigure(topic, effective_config(self.defaults, topic.configs))

    def delete_topic(self, name: str) -> CatalogTopic:
        """Remove a topic from the catalog, then its files.

        Raises:
            NotFoundError: there is no such topic.
        """
        topic = self.topic(name)
        run_steps(self.delete_topics_in_steps([name]))
        run_steps(self.remove_folders_in_steps())
        return topic

    def delete_topics_in_steps(self, names: Sequence[str]) -> Steps[list[PartitionLog]]:
        """Remove existing topics from the catalog, then from memory, then rename their folders.

        `remove_folders_in_steps` deletes the renamed folders later.

        Returns:
            The logs of the removed topics.

        Raises:
            OSError: the catalog could not be written; no topic was removed.
        """
        logs = []
        removed = self._catalog.remove_topics(dict.fromkeys(names))
        for topic in removed:
            self._logged.add(topic.name)
            for number in range(topic.partitions):
                self._unflushed.pop((topic.name, number), None)
                self._not_compacted.pop(TopicPartition(topic.name, number), None)
                logs.append(self._logs.pop((topic.name, number)))
        aside = True
        for log_gone in logs:
            missing = log_gone.missing
            log_gone.release_files()
            if not missing:
                aside = self._set_aside(log_gone.path) and aside
            yield
        if aside:
            self._catalog.forget_removed([topic.id for topic in removed])
        return logs

    def _set_aside(self, path: Path) -> bool:
        """Rename a deleted partition's folder to a unique name, so that nothing else is removed by mistake."""
        aside = self.path / f"{checkpoints.encode_id(checkpoints.new_id())}{DELETED}"
        try:
            self._doomed.append(path.replace(aside))
        except OSError as error:  # a new partition of this name, or the next start, recognizes its old topic id
            text = "folder %s of a deleted partition can't be renamed, the next start removes it: %s"
            log.warning(text, path, error)
            return False
        return True

    def remove_folders_in_steps(self) -> Steps[None]:
        """Delete the folders of removed topics. A failure is left to the next start."""
        while self._doomed:
            shutil.rmtree(self._doomed.popleft(), ignore_errors=True)
            yield

    def add_partitions(self, name: str, partitions: int) -> CatalogTopic:
        """Increase a topic's number of partitions to `partitions`.

        Raises:
            InvalidInputError: that is not more than now (INVALID_PARTITIONS).
            NotFoundError: there is no such topic.
        """
        (grown,) = run_steps(self.add_partitions_in_steps({name: partitions}))
        if isinstance(grown, KafkaError):
            raise grown
        return grown

    def add_partitions_in_steps(
        self, counts: Mapping[str, int], *, validate_only: bool = False
    ) -> Steps[list[CatalogTopic | KafkaError]]:
        """Increase topics to the given numbers of partitions, each completely or not at all.

        Returns:
            For each the durable topic, or the error as in `add_partitions`.

        Raises:
            OSError: the catalog could not be written; no topic was changed.
        """
        makers = [partial(self._grown, name, partitions) for name, partitions in counts.items()]
        return (yield from self._drafting(makers, validate_only=validate_only))

    def _grown(self, name: str, partitions: int, draft: TopicDraft[PartitionLog]) -> CatalogTopic:
        topic = self.topic(name)
        if partitions <= topic.partitions:
            raise InvalidInputError(
                f"topic {name!r} has {topic.partitions} partitions already, {partitions} is not more",
                ErrorCode.INVALID_PARTITIONS,
            )
        draft.check_partitions(name, partitions, partitions - topic.partitions, len(self._logs), self.limits)
        return replace(topic, partitions=partitions)

    def topics_created_since_load(self, journal: int) -> list[str]:
        """Return the topics created since this group journal (its partition number) was last loaded."""
        return [topic.name for topic in self.topics.values() if journal in topic.unseen]

    def record_topics_cleaned(self, journal: int) -> None:
        """Record durably that a group journal has no offsets of earlier topics any more.

        Raises:
            OSError: the catalog could not be written.
        """
        topics = {name: self.topics[name] for name in self.topics_created_since_load(journal)}
        if topics:
            left = {
                n: replace(t, unseen=tuple(shard for shard in t.unseen if shard != journal)) for n, t in topics.items()
            }
            self._catalog.put_topics(left)

    def set_configs(self, name: str, configs: Mapping[str, str]) -> CatalogTopic:
        """Replace a topic's explicit configs.

        Raises:
            InvalidInputError: a config is invalid (INVALID_CONFIG).
            NotFoundError: there is no such topic.
        """
        topic = self.topic(name)
        effective_config(self.defaults, configs)
        changed = replace(topic, configs=dict(configs))
        self._commit({name: changed}, {}, settled=False)
        return changed

    def set_defaults(self, defaults: LogConfig, producer_id_expiration_ms: int) -> None:
        """Replace the defaults of topic configs, with immediate effect."""
        self.defaults = defaults
        self.limits = replace(self.limits, producer_id_expiration_ms=producer_id_expiration_ms)
        for topic in self.topics.values():
            self._reconfigure(topic, valid_stored_config(topic.name, defaults, topic.configs))

    def _reconfigure(self, topic: CatalogTopic, config: LogConfig) -> None:
        for number in range(topic.partitions):
            self._logs[topic.name, number].reconfigure(config)

    # -- maintenance and shutdown

    @property
    def maintenance_interval_ms(self) -> int:
        """The interval, in ms, between maintenance rounds over all logs."""
        return min(_ROUND_MS, self.limits.retention_check_ms, self.limits.producer_check_ms)

    def run_maintenance_slice(self, now_ms: int) -> bool:
        """Run one slice of maintenance, about 10 ms.

        Maintenance consists of timed flushes, retention, compaction, expiry of producers, and checkpoints. Call this
        about once a second, and earlier if it returns True: there is more to do.

        `now_ms` may go back or jump: a round is due when an interval has passed in either direction.

        Raises:
            OSError: the disk failed for some partitions, while the others were maintained; the next round tries again.
        """
        failure = self._flush_by_time(now_ms)
        has_more = self._maintain_slice(now_ms)
        if failure is not None:
            raise failure
        return has_more

    def _maintain_slice(self, now_ms: int) -> bool:
        began = time.monotonic()
        for _ in self.remove_folders_in_steps():
            if time.monotonic() >= began + _SLICE_S / 2:
                break
        if self._upkeep is None:
            if not _is_due(self._round_ms, now_ms, self.maintenance_interval_ms):
                return bool(self._doomed)
            self._round_ms = now_ms
            self._upkeep = self._round(now_ms)
        upkeep, self._upkeep = self._upkeep, None
        for waits in upkeep:
            if waits or time.monotonic() >= began + _SLICE_S:
                self._upkeep = upkeep
                return True
        return bool(self._doomed)

    def _flush_by_time(self, now_ms: int) -> OSError | None:
        """Fsync what has waited for `flush.ms`, counted from the call that saw it first; return the first failure."""
        failure: OSError | None = None
        for tp, partition in self._logs.items():
            limit = partition.config.flush_ms
            if limit == FLUSH_NEVER_MS or partition.end_offset == partition.flushed_offset:
                self._unflushed.pop(tp, None)
            elif _is_due(self._unflushed.setdefault(tp, now_ms), now_ms, limit):
                try:
                    partition.flush()
                except OSError as error:  # the others must not wait for this one's disk
                    failure = failure or _error_naming_partition(TopicPartition(*tp), error)
                else:
                    del self._unflushed[tp]
        return failure

    def _round(self, now_ms: int) -> Iterator[bool]:
        limits = self.limits
        aged = _is_due(self._retention_ms, now_ms, limits.retention_check_ms)
        forgets = _is_due(self._producers_ms, now_ms, limits.producer_check_ms)
        self._retention_ms = now_ms if aged else self._retention_ms
        self._producers_ms = now_ms if forgets else self._producers_ms
        failure: OSError | None = None
        for tp, partition in self.partitions():
            if not partition.readable:
                continue
            if forgets:
                partition.producers.forget_idle(now_ms - limits.producer_id_expiration_ms)
            try:
                partition.finish_interrupted_change()
                if aged:
                    delete_old_segments(partition, now_ms)
                flush_idle_segments(partition, now_ms)
                yield False
                if self._logs.get(tp) is partition:
                    yield from self._compact(tp, partition, now_ms)
            except OSError as error:  # on a full disk, the retention of the others makes the room that this one needs
                failure = failure or _error_naming_partition(tp, error)
        try:
            self._catalog.rewrite_if_unsure()
            self._write_checkpoints()
        except OSError as error:
            failure = failure or error
        if failure is not None:
            raise failure

    def _compact(self, tp: TopicPartition, partition: PartitionLog, now_ms: int) -> Iterator[bool]:
        roll_for_compaction(partition, now_ms)
        if self._not_compacted.get(tp) == (partition, partition.cuts):
            return  # as long as the damaged segment is there: another run would read and write everything before it
        run: Compaction | None = None
        try:
            run = Compaction.compaction_if_due(partition, now_ms, self.compact_in)
            if run is None:
                return
            for waits in run.steps():
                yield waits
                if self._logs.get(tp) is not partition:
                    return
            log.info("[partition %s] compacted, %d bytes saved", tp, run.finish())
        except CorruptDataError as error:
            self._not_compacted[tp] = (partition, partition.cuts)
            log.error("[partition %s] not compacted until it is repaired (kohort log check --repair): %s", tp, error)
            if run is not None:
                run.discard()
        except OSError:
            if run is not None and partition.unfinished is None:
                run.discard()  # on a full disk, the space is needed
            raise

    def _write_starts(self) -> None:
        starts = {tp: p.log_start_offset for tp, p in self.partitions() if p.log_start_offset}
        checkpoints.write_offset_checkpoints(self.path, {LOG_STARTS: starts})

    def _write_bounds(self) -> None:
        self._write_checkpoints()
        self._write_starts()

    def _write_checkpoints(self) -> None:
        write_recovery_points(self.path, self.partitions())

    def close(self) -> None:
        """Flush all logs, record a clean shutdown, and release the folder.

        Raises:
            OSError: the disk failed for some partitions; the next start recovers the folder.
        """
        if self._closed:
            return
        self._closed = True
        failure: OSError | None = None
        clean = False
        try:
            for tp, partition in self.partitions():
                try:
                    partition.close()
                except OSError as error:  # the others are flushed all the same
                    failure = failure or _error_naming_partition(tp, error)
            self._catalog.rewrite_if_unsure()
            self._write_bounds()
            if failure is not None:
                raise failure
            clean = True
        finally:
            self._owned.release(clean=clean)
