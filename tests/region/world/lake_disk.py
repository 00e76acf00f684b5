"""The sink that ships for a DuckLake table, in a lake of this machine, beside another writer and its maintenance.

DuckDB's extension, its catalog in SQLite and the Parquet files are real. A commit may be refused, or its answer lost.
Costly reads are made once: of the table's state after each commit, and whether DuckLake takes a file of these columns.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from kohort.errors import InvalidInputError, RetriableError
from kohort.region.records import Position
from kohort.region.sinks import ducklake_catalog
from kohort.region.sinks.ducklake_catalog import DATA, DuckLake, LakeTransaction, UnknownCommitError
from kohort.region.sinks.ducklake_table import DuckLakeTable
from kohort.region.staged import StagedKey
from tests.region.places import HeldFiles
from tests.region.volume import Calls, Died, Volume
from tests.region.world.bucket import BusierFaults, StoreFaults
from tests.region.world.clock import Clock, ViolatedError
from tests.region.world.disk import Disk, Record, RunningSum, WorldSink, are_equal, records_of
from tests.region.world.late_publisher import NO_ORDERS, LatePublisher, orders
from tests.region.world.names import REGION, REGION_ID
from tests.region.world.object_disk import Takes

TABLE: Final = "flights"
FOREIGN: Final = -1
"""The partition in the rows of another program."""
APPENDS_MS: Final = 12_000
MAINTAINS_MS: Final = 16_000
LOOKS_EVERY: Final = 10
"""At every so-manyth check, and after each maintenance, DuckDB reads the table. Otherwise its files are compared."""
MAINTENANCE: Final = (
    ("CALL ducklake_merge_adjacent_files('{lake}')",),
    ("CALL ducklake_flush_inlined_data('{lake}')",),
    (
        "CALL ducklake_expire_snapshots('{lake}', older_than => now())",
        "CALL ducklake_cleanup_old_files('{lake}', cleanup_all => true)",
    ),
)
_NUMBERS: Final = itertools.count()


class LakeCalls(Calls):
    """The calls of one process to the system and to the lake."""

    def do(self, call: str, act: Callable[[], Any]) -> Any:
        name, _, path = call.partition(" ")
        number = self._begin(name, path)
        done = act()
        self.after(number, name, path)
        return done


class WorldLakeTransaction(LakeTransaction):
    """A transaction whose statements may fail, or take their time."""

    sink: LakeSink

    def _run(self, statement: str, *values: object) -> Any:
        return self.sink.ask(statement[:40], lambda: LakeTransaction._run(self, statement, *values))


class WorldLake(DuckLake):
    """A lake of such transactions."""

    sink: LakeSink

    def _begun(self, cursor: Any, name: str) -> LakeTransaction:
        made = WorldLakeTransaction(cursor, name)
        made.sink = self.sink
        return made

    def _commit_snapshot(self, at: LakeTransaction) -> None:
        decisive = self.sink.decisive
        fault = "" if decisive is None else decisive.next_fault(writes=True)
        if fault and fault != "lost answer":
            raise UnknownCommitError("the catalog is away")
        super()._commit_snapshot(at)
        self.sink.disk.committed(self.sink.moved)
        if fault:
            raise UnknownCommitError("the answer of a commit was lost")


class LakeSink(WorldSink, DuckLakeTable):
    """The table as one process sees it.

    Attributes:
        faults: the faults of its requests; None: each is answered at once.
        decisive: those of its commits.
        may_wait: whether time may pass now, while this process waits for an answer.
        moved: the state that its transaction makes; None: another one.
    """

    disk: LakeDisk
    moved: Any = None

    def __init__(self, disk: LakeDisk, faults: StoreFaults | None, decisive: StoreFaults | None) -> None:
        super().__init__(TABLE, lake=disk.folder)
        self.disk, self.calls, self._place = disk, LakeCalls(Volume()), disk.place
        self.faults, self.decisive = faults, decisive
        self.may_wait: Callable[[], bool] = lambda: False
        self._files = HeldFiles(self.calls)  # type: ignore[arg-type,assignment]

    @property
    def _lake(self) -> DuckLake:
        lake = WorldLake(self.path, self.place)
        lake.sink = self
        return lake

    def ask(self, statement: str, effect: Callable[[], Any]) -> Any:
        """Execute a statement, with the fault that it meets."""
        assert isinstance(self.calls, LakeCalls)
        if self.faults is not None and self.faults.next_fault(writes=False):
            raise RetriableError("the catalog does not answer")
        if self.faults is not None and self.may_wait() and self.faults.is_slow():
            self.faults.pass_time()
            if self.calls.dead:
                raise Died
        return self.calls.do(statement, effect)

    def _newest_state(self) -> Any:
        """Return the state, which only a commit changes."""
        known = self.disk.known_state
        if known is None:
            commits, found = self.disk.commits, super()._newest_state()
            known = self.disk.known_state = (found,) if commits == self.disk.commits else None
            return found
        return self.ask("SELECT the state", lambda: known[0])

    def _move(self, at: LakeTransaction, state: Any, sequence: int, rows: int, emptied: int) -> None:
        super()._move(at, state, sequence, rows, emptied)
        self.moved = replace(state, sequence=sequence, row_count=rows, emptied=emptied)

    def _until_there(self, is_there: Any, change: Any) -> bool:
        self.moved = None
        return super()._until_there(is_there, change)

    def check(self, schema: pa.Schema) -> None:
        self.moved = None
        if schema in self.disk.checked and self._find() is not None:
            return
        super().check(schema)
        self.disk.checked.append(schema)

    def _check_file_accepted(self, path: str) -> None:
        """Try the empty file of a check; those of stages have the same columns."""
        if "/tried/" in path:
            super()._check_file_accepted(path)

    def _write_rows(self, path: str, rows: pa.Table) -> None:
        super()._write_rows(path, rows)
        self.disk.rows[os.path.basename(path)] = Counter(records_of(rows))

    def publish_with(self, sequence: int, keys: Iterable[StagedKey], positions: Iterable[Position]) -> None:
        self.disk.ordered = orders(sequence, keys, positions)
        super().publish_with(*self.disk.ordered)

    def empty(self, sequence: int, floor: int) -> None:
        """Empty the table; where a compaction has mixed its rows with others, a person deletes all of them first."""
        try:
            super().empty(sequence, floor)
        except InvalidInputError as error:
            if not (self.disk.foreign or self.disk._read_table()):
                raise  # a person has deleted all
            self.disk.delete_all()
            raise RetriableError(str(error)) from None


class LakeDisk(Disk):
    """A table in a lake, and what has to be in it.

    Attributes:
        folder: the lake.
        rows: the records in each file that a member has written, by its name.
        foreign: the offsets of another program's rows, which are in the table until a person deletes them.
        ordered: what somebody was told to publish last.
        commits: how many there were.
        known_state: the state of the table since the last commit; None: nobody has looked yet.
        checked: the schemas with which members have checked the table.
    """

    def __init__(self, path: str, takes: Takes, faults: StoreFaults) -> None:
        super().__init__(path, takes)
        root = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        weakref.finalize(self, shutil.rmtree, root, ignore_errors=True)
        self.folder, self.place = f"{root}/lake", f"ducklake:{path}#main.{TABLE}"
        self.faults, self.decisive = faults, BusierFaults(faults, f"commits in {path}")
        self.rows: dict[str, Counter[Record]] = {}
        self.foreign: set[int] = set()
        self.ordered = NO_ORDERS
        self.commits = self._last = self._emptied = self._checks = 0
        self.known_state: tuple[Any] | None = None
        self.checked: list[pa.Schema] = []
        self._files: frozenset[str] = frozenset()
        self._found, self._wanted_sum = RunningSum(), RunningSum()
        self._reader: Any = None

    def open_sink(self, may_wait: Callable[[], bool] | None = None) -> LakeSink:
        """Return the sink as a new process has it; without `may_wait` each of its requests is answered at once."""
        sink = LakeSink(self, *((None, None) if may_wait is None else (self.faults, self.decisive)))
        sink.may_wait = may_wait or sink.may_wait
        return sink.bind(REGION, REGION_ID)

    def besides(self, clock: Clock, seed: int, era: Callable[[], object]) -> list[Any]:
        """Return a publisher that comes late, and a program that writes and maintains the lake."""
        return [LatePublisher(clock, self, seed, era), LakeWriter(clock, self, seed)]

    def backup(self) -> Any:
        """Return a copy of the lake's files."""
        files = {path.relative_to(self.folder): path.read_bytes() for path in Path(self.folder).rglob("*")
                 if path.is_file() and not path.name.endswith("-shm")}  # fmt: skip
        return SimpleNamespace(files=files, foreign=set(self.foreign), emptied=self._emptied, last=self._last)

    def restore(self, backup: Any) -> None:
        """Be as when the copy was made; all processes have ended."""
        self._close()
        shutil.rmtree(self.folder, ignore_errors=True)
        for name, content in backup.files.items():
            path = Path(self.folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        self.foreign, self._emptied, self._last = set(backup.foreign), backup.emptied, backup.last
        self.ordered, self.known_state, self.checked = NO_ORDERS, None, []
        if backup.files:
            self.committed()

    def lose_power(self, chance: random.Random) -> None:
        """The lake is elsewhere: nothing is lost."""

    def emptied(self) -> None:
        """Nothing of what was void is shown any more."""
        super().emptied()
        self._compare_table(self._look())

    def shown(self) -> set[int]:
        """Return the sequences that are in the table."""
        return {number for number in self._expected() if self._emptied < number <= self._last}

    def check(self) -> None:
        """The table was compared at each commit, and nothing else changes it."""

    def check_published(self, last: int) -> None:
        super().check_published(last)
        self._checks += 1
        if self._checks % LOOKS_EVERY == 0:
            self.look_well()
        there = {name for _, _, names in os.walk(self.folder) for name in names}
        if gone := sorted(self._files - there - {""}):
            raise ViolatedError(f"{gone[0]} is gone, and {self.place} has it")

    def _expected(self) -> dict[int, Counter[Record]]:
        return {**self.void, **self.wanted}

    # -- what is in the lake

    def ask(self, statement: str) -> list[Any]:
        """Return the rows of a query of the catalog, by a connection that stays."""
        if self._reader is None:
            self._name = f"look{next(_NUMBERS)}"
            self._reader = ducklake_catalog._database().cursor()
            self._reader.execute(f"ATTACH '{self.folder}/catalog.sqlite' AS {self._name} (TYPE sqlite, READ_ONLY)")
        return self._reader.execute(statement.replace("{catalog}", self._name)).fetchall()  # type: ignore[no-any-return]

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.execute(f"DETACH {self._name}")
            self._reader.close()
            self._reader = None

    def __del__(self) -> None:
        with contextlib.suppress(duckdb.Error):
            self._close()

    def committed(self, moved: Any = None) -> None:
        """A commit was made: the table has the rows of all sequences up to its last one, each once.

        Args:
            moved: the state that it made; None: it is to be read.

        Raises:
            ViolatedError: the table has other rows.
        """
        self.commits, self.known_state = self.commits + 1, None if moved is None else (moved,)
        [(said,)] = self.ask(
            "SELECT commit_extra_info FROM {catalog}.ducklake_snapshot_changes ORDER BY snapshot_id DESC LIMIT 1"
        ) or [(None,)]
        if said is not None:
            extra = json.loads(said)["kohort"]
            self._last = extra["sequence"]
            self._check_offsets(extra)
        found = self._look()
        if self.void and max(self.void) <= self._last:
            found = self._read_table()  # DuckLake keeps deletions of a few rows in tables of the catalog
            self._emptied = self._last if not sum(found.values()) else self._emptied
        self._compare_table(found)

    def _check_offsets(self, extra: dict[str, Any]) -> None:
        wanted = self.offsets.get(self._last, "")
        if (
            self._last in self._expected()
            and wanted
            and extra.get("offsets", wanted) not in (wanted, json.loads(wanted))
        ):
            raise ViolatedError(f"sequence {self._last} ends at {extra['offsets']} in {self.place}, not {wanted}")

    def _look(self) -> Counter[Record]:
        """Return the records of the region in the table, by its files; where rows are deleted in one, by a reader."""
        if self._reader is None and not os.path.exists(f"{self.folder}/catalog.sqlite"):
            return Counter()
        files = self.ask(
            "SELECT f.path FROM {catalog}.ducklake_data_file f JOIN {catalog}.ducklake_table t USING (table_id) "
            f"WHERE t.table_name = '{TABLE}' AND t.end_snapshot IS NULL AND f.end_snapshot IS NULL UNION ALL "
            "SELECT '' FROM {catalog}.ducklake_delete_file WHERE end_snapshot IS NULL"
        )
        names = [path.rpartition("/")[2] for (path,) in files]
        self._files = frozenset(names)
        if "" in names:
            return self._read_table()
        for name in names:
            if name not in self.rows:
                path = next(Path(self.folder, DATA).rglob(name))
                rows = records_of(pq.ParquetFile(path).read(["partition", "offset"]))
                self.rows[name] = Counter(record for record in rows if record[0] != FOREIGN)
        return self._found.of({number: self.rows[name] for number, name in enumerate(names)})

    def look_well(self) -> None:
        """Compare what a stranger reads, with the other program's rows too."""
        if self.checked:
            self._compare_table(self._read_table())

    def _read_table(self) -> Counter[Record]:
        """Read the table as a stranger does."""
        with DuckLake(self.folder, self.place).transaction() as at:
            rows = at.query_rows(f'SELECT "partition", "offset" FROM {{lake}}.main.{TABLE}')
        foreign = {offset for part, offset in rows if part == FOREIGN}
        if foreign != self.foreign:
            raise ViolatedError(f"{foreign ^ self.foreign} of another program changed in {self.place}")
        return Counter((part, offset) for part, offset in rows if part != FOREIGN)

    def _compare_table(self, found: Counter[Record]) -> None:
        wanted = {number: rows for number, rows in self._expected().items() if self._emptied < number <= self._last}
        expected = self._wanted_sum.of(wanted)
        if not are_equal(found, expected) and not are_equal(found := self._read_table(), expected):
            missing, extra = expected - found, found - expected
            raise ViolatedError(f"{self.place} up to {self._last}: missing {missing}, too many {extra}")

    # -- a person, and another program

    def change(self, *statements: str) -> bool:
        """Execute statements in a transaction each, as another program; return whether the lake took them."""
        sink = self.open_sink()
        try:
            for statement in statements:
                with sink._lake.transaction() as at:
                    at.execute_change(statement)
        except RetriableError:
            return False
        return True

    def delete_all(self) -> None:
        """Delete all rows, as a person does who was told to."""
        before = self.foreign, self._emptied
        self.foreign, self._emptied = set(), self._last
        if not self.change(f"DELETE FROM {{lake}}.main.{TABLE}"):
            self.foreign, self._emptied = before


class LakeWriter:
    """Another program: it appends to the table, merges its files, and expires snapshots."""

    def __init__(self, clock: Clock, disk: LakeDisk, seed: int) -> None:
        self._clock, self._disk, self._chance = clock, disk, random.Random(f"{seed}: foreign writer of {disk.path}")
        self.done = 0

    def start(self) -> None:
        """Write and maintain again and again."""
        self._clock.after(self._chance.randint(1, APPENDS_MS), self._append)
        self._clock.after(self._chance.randint(1, MAINTAINS_MS), self._maintain)

    def _append(self) -> None:
        self._clock.after(self._chance.randint(1, APPENDS_MS), self._append)
        disk = self._disk
        if not disk.checked:
            return
        self.done += 1
        disk.foreign.add(self.done)
        if not disk.change(
            f'INSERT INTO {{lake}}.main.{TABLE} ("partition", "offset") VALUES ({FOREIGN}, {self.done})'
        ):
            disk.foreign.discard(self.done)

    def _maintain(self) -> None:
        self._clock.after(self._chance.randint(1, MAINTAINS_MS), self._maintain)
        if self._disk.checked:
            self._disk.change(*self._chance.choice(MAINTENANCE))
            self._disk.look_well()
