"""Offline verification of a data folder, including checksums. Nothing is changed; `repair` does that."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from kohort.errors import CorruptDataError, InvalidInputError
from kohort.ids import TopicPartition
from kohort.log import checkpoints, folder, recovery
from kohort.log.catalog import FILE as CATALOG
from kohort.log.catalog import CatalogTopic, read_catalog, valid_stored_config
from kohort.log.config import LogConfig
from kohort.log.continuity import Epochs, IndexedPositions, LocatedBatch, SegmentRules, complete_end, scan_batches
from kohort.log.damage import ASIDE, LogDamage
from kohort.log.filesystem import PRIVATE_MODE
from kohort.log.gaps import damaged_by_index, missing_end_damage, replace_batch_by_damage
from kohort.log.index import AbortedRange, OffsetIndex, TimeIndex, TransactionIndex
from kohort.log.markers import parse_marker
from kohort.log.recovery import OpenOptions
from kohort.log.results import OpenFile

Progress = Callable[[int], None]
"""Callback that takes the number of bytes that were checked."""


@dataclass(frozen=True, slots=True)
class Defect:
    """One defect of a data folder that a check found.

    Attributes:
        partition: `<topic>-<partition>`; "" for a file of the whole folder.
        damage: the position, and the offsets lost; none are lost if only an index or a similar file is damaged.
        epoch: the leader epoch of the damaged records.
        kind: "records" (a range of a log file), "index" (can be rebuilt), or "file" (can't be opened at all).
    """

    partition: str
    damage: LogDamage
    kind: str
    epoch: int = 0

    @property
    def lost_offsets(self) -> int | None:
        """The number of offsets that can't be read; None: unknown."""
        damage = self.damage
        return None if damage.next_offset is None else max(0, damage.next_offset - damage.first_offset)


@dataclass(slots=True)
class Report:
    """The defects and notes of a data folder's check, and what was checked.

    Attributes:
        notes: irregularities that are no damage, in sentences.
    """

    partitions: int = 0
    files: int = 0
    bytes: int = 0
    found: list[Defect] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@contextmanager
def locked_folder(path: Path) -> Iterator[None]:
    """Lock a data folder that no broker uses, without changing anything in it.

    Raises:
        InvalidInputError: a broker uses the folder, or it is no data folder.
    """
    if not (path / folder.META).exists() and not (path / CATALOG).exists():
        raise InvalidInputError(f"{path} is no data folder of a broker: it has no {folder.META}")
    try:
        fd = os.open(path / folder.LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_MODE)
    except OSError as error:
        raise InvalidInputError(f"can't use the data folder {path}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            words = os.pread(fd, 200, 0).decode(errors="replace").split()
            owner = f" (process {words[0]})" if words else ""
            raise InvalidInputError(f"the data folder {path} is in use by a broker{owner}; stop it first") from None
        yield
    finally:
        os.close(fd)


def log_bytes(path: Path) -> int:
    """Return the size of all log files of a data folder, which is the amount to check."""
    return sum(file.stat().st_size for file in path.glob("*/*.log") if file.is_file())


class FolderCheck:
    """A check of a data folder under `locked_folder`."""

    def __init__(self, path: Path, progress: Progress = lambda _: None) -> None:
        self.path = path
        self.report = Report()
        self._progress = progress
        self.clean = (path / folder.CLEAN).exists()
        self._kept_running = folder.has_stayed_up_since((path / folder.LOCK).read_text(errors="replace").split())
        checksums = checkpoints.read_checksums(path)
        self._points, self._cleaned, self._starts = (
            checkpoints.read_offsets_if_valid(path / name, checksums, self._checkpoint)
            for name in (checkpoints.RECOVERY_POINTS, checkpoints.CLEANED, checkpoints.LOG_STARTS)
        )
        self._topics = self._catalog()

    def _checkpoint(self, path: Path, error: Exception) -> None:
        self._add("", path, f"it can't be read ({_words(error)}); a broker starts without it", "index")

    def _catalog(self) -> Mapping[str, CatalogTopic] | None:
        try:
            topics = read_catalog(self.path)
        except (CorruptDataError, OSError) as error:
            self._add(
                "", self.path / CATALOG, f"it can't be read ({_words(error)}); no broker starts without it", "file"
            )
            return None
        if topics is None and any(self.path.glob("*/*.log")):
            self._add("", self.path / CATALOG, "it is missing; no broker starts without it", "file")
        return topics

    def _add(self, partition: str, path: Path, reason: str, kind: str) -> None:
        self.report.found.append(Defect(partition, LogDamage(path, 0, None, 0, 0, reason), kind))

    def run(self) -> Report:
        """Check every partition: those of the catalog's topics, or of every folder that looks like one."""
        if self._topics is not None:
            known = [f"{topic.name}-{number}" for topic in self._topics.values() for number in range(topic.partitions)]
        else:
            known = sorted(entry.name for entry in self.path.iterdir() if entry.is_dir() and _is_partition(entry.name))
        for name in known:
            self._partition(name)
        for entry in sorted(self.path.iterdir()):
            if entry.is_dir() and _is_partition(entry.name) and entry.name not in known:
                self.report.notes.append(f"{entry.name} belongs to no topic")
        return self.report

    def open_options(self, tp: TopicPartition) -> OpenOptions:
        """Return what the data folder's checkpoints say about a partition, as options for opening it."""
        return OpenOptions(
            clean=self.clean,
            verified_offset=None if self._kept_running else (self._points or {}).get(tp, 0),
            known_end=(self._points or {}).get(tp, 0),
            log_start_offset=(self._starts or {}).get(tp),
            cleaned_offset=(self._cleaned or {}).get(tp, 0),
            cleaned_unknown=self._cleaned is None or self._topics is None,
            synced_unknown=self._points is None,
        )

    def _partition(self, name: str) -> None:
        self.report.partitions += 1
        topic, _, number = name.rpartition("-")
        known = (self._topics or {}).get(topic)
        config = valid_stored_config(known.name, LogConfig(), known.configs) if known is not None else LogConfig()
        check = PartitionCheck(self.path / name, config, self.open_options(TopicPartition(topic, int(number))))
        try:
            check.run(self._progress)
        except OSError as error:
            self._add(name, self.path / name, f"it can't be read ({_words(error)})", "file")
        self.report.files += check.files
        self.report.bytes += check.bytes
        self.report.found += check.found
        self.report.notes += check.notes


class AbortedTransactions:
    """The aborted transactions that the batches of a log prove, to which its transaction indexes are compared."""

    def __init__(self) -> None:
        self.is_known = True
        """Whether all batches so far were read."""
        self.in_segment: dict[int, AbortedRange] = {}
        """The aborted transactions of the current segment, by the offset of their marker. `first_offset` is -1 if no
        batch is there.
        """
        self._has_gaps = True
        self._whole_from = 0
        self._open: dict[int, int] = {}

    def begin_segment(self, base_offset: int, *, has_gaps: bool) -> None:
        """Begin the next segment, whose batches follow.

        `has_gaps`: compaction may have removed some of its batches.
        """
        if self._has_gaps:
            self._whole_from = base_offset
            self._open.clear()
        self._has_gaps, self.in_segment = has_gaps, {}

    def record_log_batch(self, found: LocatedBatch, file: OpenFile) -> None:
        """Record the next batch of the log, which may begin or end a transaction."""
        header = found.header
        if header.producer_id < 0 or not header.is_transactional:
            return
        if not header.is_control:
            self._open.setdefault(header.producer_id, header.base_offset)
            return
        try:
            marker = parse_marker(header, file.fs.pread(file.fd, header.size, found.position))
        except CorruptDataError:
            marker = None
        if marker is None:
            return
        first, end = self._open.pop(header.producer_id, -1), header.base_offset
        if not marker.commit:
            stable = min(self._open.values(), default=end + 1)
            self.in_segment[end] = AbortedRange(header.producer_id, first, end, stable)

    def contradicts_index(self, entries: Sequence[AbortedRange], *, complete: bool) -> bool:
        """Return whether a transaction index disagrees with the batches of the current segment.

        Args:
            entries: the index.
            complete: whether the index has an entry for each aborted transaction.
        """
        proven = {end: aborted for end, aborted in self.in_segment.items() if aborted.first_offset >= 0}
        missing = set(proven) if complete and not self._has_gaps else set()
        for entry in entries:
            missing.discard(entry.last_offset)
            found = self.in_segment.get(entry.last_offset)
            if found is None and self._has_gaps:
                continue  # the marker was removed
            if found is None or entry.producer_id != found.producer_id or entry.first_offset >= entry.last_offset:
                return True
            began_before = self._has_gaps or entry.first_offset < self._whole_from
            if not began_before and entry.first_offset != found.first_offset:
                return True
            if self._whole_from == 0 and not self._has_gaps and entry.last_stable_offset != found.last_stable_offset:
                return True
        return bool(missing)


class PartitionCheck:
    """A check of the files of one partition."""

    def __init__(self, path: Path, config: LogConfig, options: OpenOptions) -> None:
        self.path = path
        self.files = 0
        self.bytes = 0
        self.found: list[Defect] = []
        self.notes: list[str] = []
        self._config = config
        self._epochs = Epochs()
        self._epoch = 0
        self._options = options
        self._aborted = AbortedTransactions()
        self._checksums = checkpoints.read_index_checksums(path) if path.exists() else {}

    def run(self, progress: Progress) -> None:
        """Check every segment, index and checkpoint of the partition's folder.

        The folder is created with the first record: an empty partition has none.
        """
        there = self.path.exists()
        names = sorted(os.listdir(self.path)) if there else []
        bases, missing = self._bases(names)
        known_end = recovery.known_end_offset(self.path, names, self._options)
        epochs = self._epochs = recovery.checkpointed_epochs(self.path, names, bases, self._options)
        if epochs.known is None and checkpoints.LEADER_EPOCHS in names:
            self._index(self.path / checkpoints.LEADER_EPOCHS, "it can't be read")
        everything = sorted([*bases, *missing])
        for number, base in enumerate(everything):
            following = everything[number + 1] if number + 1 < len(everything) else None
            path = self.path / f"{base:020d}.log"
            gaps = base < self._options.cleaned_offset
            if following is not None:
                some = self._config.uses_compaction or self._options.cleaned_offset > 0 or self._options.cleaned_unknown
                gaps = gaps or some
            if base in missing:
                self._aborted.is_known = False
                self._records(LogDamage(path, 0, None, base, following, "the file is missing"), "records")
                continue
            self._segment(SegmentRules(path, base, following, gaps, epochs), known_end, progress)
        self._report_hole()
        start = self._options.log_start_offset or 0
        if not everything and known_end > start:
            path = self.path / f"{start:020d}.log"
            reason = "the file is missing" if there else "the folder of the partition is missing"
            self._records(LogDamage(path, 0, None, start, known_end, reason), "records")
        if there and not (self.path / checkpoints.PARTITION_METADATA).exists():
            self.notes.append(f"{self.path.name}: {checkpoints.PARTITION_METADATA} is missing, and is made again")

    def _report_hole(self) -> None:
        """Add a note if the next start of a broker would truncate this log at damage (`recovery.truncate_at_hole`)."""
        options = self._options
        if options.clean or options.verified_offset is None or options.synced_unknown:
            return
        sure, start = recovery.durable_end_offset(options), options.log_start_offset or 0
        damages = [finding.damage for finding in self.found if finding.kind == "records"]
        holes = [d for d in damages if d.first_offset >= sure and (d.next_offset is None or d.next_offset > start)]
        if holes:
            where = f"{self.path.name}/{holes[0].path.name}"
            self.notes.append(
                f"{where}: the machine stopped before what lies behind byte {holes[0].position} was known to be on the "
                f"disk; a start ends the log there, at offset {holes[0].first_offset}, and sets the rest aside, unless "
                "it is repaired before"
            )

    def _bases(self, names: list[str]) -> tuple[list[int], list[int]]:
        bases = sorted(
            int(name[:20]) for name in names if recovery.SEGMENT_FILE.fullmatch(name) and name.endswith(".log")
        )
        missing: set[int] = set()
        for name in names:
            if recovery.SEGMENT_FILE.fullmatch(name):
                base = int(name[:20])
                if base not in bases and bases and bases[0] < base < bases[-1] and not name.endswith(".txnindex"):
                    missing.add(base)
            elif name not in checkpoints.OF_PARTITION and not name.endswith((".snapshot", ".log.swap", ASIDE)):
                self.notes.append(f"{self.path.name}/{name} is no file of a log")
        return bases, sorted(missing)

    def _records(self, damage: LogDamage, kind: str) -> None:
        low = self._epochs.epoch_bounds(damage.first_offset)[0]
        self.found.append(Defect(self.path.name, damage, kind, max(0, low if low >= 0 else self._epoch)))

    def _index(self, path: Path, reason: str) -> None:
        self._records(LogDamage(path, 0, None, 0, 0, f"{reason}; it is made again"), "index")

    def _segment(self, rules: SegmentRules, known_end: int, progress: Progress) -> None:
        self.files += 1
        try:
            file = OpenFile(rules.path, os.O_RDONLY)
        except OSError as error:
            self._aborted.is_known = False
            following = known_end if rules.limit is None else rules.limit
            reason = f"the file can't be opened ({error.strerror})"
            self._records(LogDamage(rules.path, 0, None, rules.base_offset, following or None, reason), "file")
            return
        size = os.fstat(file.fd).st_size
        self.bytes += size
        self._walk(file, size, rules, known_end, progress)

    def _walk(self, file: OpenFile, size: int, rules: SegmentRules, known_end: int, progress: Progress) -> None:
        ends: dict[int, int] = {}
        stamps: dict[int, int] = {}
        self._aborted.begin_segment(rules.base_offset, has_gaps=rules.gaps)
        last: LogDamage | None = None
        reported = 0
        end_offset = rules.base_offset
        findings = scan_batches(file, size, rules, crc=True)
        index = OffsetIndex(str(rules.path.with_suffix(".index")))
        if rules.gaps and index.load(size) and index.positions:
            pins = IndexedPositions(index.offsets, index.positions)
            blamed = damaged_by_index(scan_batches(file, size, rules), pins, rules)
            findings = findings if blamed is None else replace_batch_by_damage(findings, blamed, rules)
        for found in findings:
            if isinstance(found, LogDamage):
                self._aborted.is_known = False
                if last is not None:
                    self._records(last, "records")
                last = found
                end_offset = found.next_offset if found.next_offset is not None else found.first_offset
                continue
            if last is not None:
                self._records(last, "records")
                last = None
            ends[found.position] = found.header.last_offset
            stamps[found.header.last_offset] = found.header.max_timestamp
            self._aborted.record_log_batch(found, file)
            self._epoch = found.header.partition_leader_epoch
            end_offset = found.header.next_offset
            if found.end - reported >= 1 << 20:
                progress(found.end - reported)
                reported = found.end
        progress(size - reported)
        if rules.gaps and last is None:
            claim = TimeIndex(str(rules.path.with_suffix(".timeindex"))).last_entry_in_file()
            last = missing_end_damage(rules, size, end_offset, claim, set(stamps.values()))
        self._classify_end(file, size, rules, known_end, last, end_offset)
        self._indexes(rules, ends, stamps, size)
        self._transaction_index(rules)

    def _classify_end(
        self, file: OpenFile, size: int, rules: SegmentRules, known_end: int, last: LogDamage | None, end_offset: int
    ) -> None:
        """Decide whether a segment's file ends completely, with a torn write, or with damage."""
        if rules.limit is not None:
            if last is not None:
                self._records(last, "records")
            return
        if last is not None and last.next_offset is None:
            whole_writes = self._options.clean or self._options.verified_offset is None
            whole = complete_end(file, last.position, size, last.first_offset, whole_writes=whole_writes)
            known_end = max(known_end, whole or 0)
            if known_end > last.first_offset:
                self._records(replace(last, next_offset=known_end), "records")
            elif self._options.clean:
                self._records(last, "records")
            else:
                torn = size - last.position
                self.notes.append(f"{rules.path.parent.name}/{rules.path.name} ends in a torn write of {torn} bytes")
        elif end_offset < known_end:
            reason = f"the file ends here, the log went on to offset {known_end}"
            self._records(LogDamage(rules.path, size, 0, end_offset, known_end, reason), "records")

    def _indexes(self, rules: SegmentRules, ends: Mapping[int, int], stamps: Mapping[int, int], size: int) -> None:
        """Compare the offset and time index of a segment with its batches.

        `ends` are the batches' last offsets by position, `stamps` their largest timestamps by last offset.
        """
        stem = str(rules.path).removesuffix(".log")
        index, times = OffsetIndex(stem + ".index"), TimeIndex(stem + ".timeindex")
        damages = [finding.damage for finding in self.found if finding.damage.path == rules.path]
        if not index.load(size) or any(
            ends.get(position) != rules.base_offset + offset
            for position, offset in zip(index.positions, index.offsets, strict=True)
            if not any(damage.position <= position < damage.position + (damage.length or 0) for damage in damages)
        ):
            self._index(Path(stem + ".index"), "its entries are not those of the batches")
        if not times.load() or any(
            stamps.get(rules.base_offset + offset) != timestamp
            for timestamp, offset in zip(times.timestamps, times.offsets, strict=True)
            if not any(
                damage.first_offset <= rules.base_offset + offset < (damage.next_offset or 2**63) for damage in damages
            )
        ):
            self._index(Path(stem + ".timeindex"), "its entries are not those of the batches")

    def _transaction_index(self, rules: SegmentRules) -> None:
        """Compare a transaction index with its checksum, and with the transactions that the batches prove."""
        path = rules.path.with_suffix(".txnindex")
        index, expected = TransactionIndex(str(path)), self._checksums.get(rules.base_offset)
        if not index.load():
            self._index(path, "it can't be read")
        elif expected is not None and index.checksum(expected.entries) != expected.crc:
            self._index(path, f"its entries don't fit their checksum in {checkpoints.TRANSACTION_INDEXES}")
        elif self._aborted.is_known and self._aborted.contradicts_index(index.entries, complete=self._options.clean):
            self._index(path, "its entries are not those of the aborted transactions")


def _is_partition(name: str) -> bool:
    topic, _, number = name.rpartition("-")
    return bool(topic) and number.isdecimal()


def _words(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
