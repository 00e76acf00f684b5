"""What a member submits, on its way into its sink: gathered into units, each staged under a key of its own."""

from __future__ import annotations

import threading
from uuid import UUID

import pyarrow as pa

from kohort.region.sinks import Sink
from kohort.region.staged import StagedKey

UNIT_BYTES = 64 * 1024 * 1024


class Stager:
    """The units of one member; the thread that processes and the event thread use it in turn."""

    def __init__(self, sink: Sink | None, region_id: UUID, name: str, unit_bytes: int = UNIT_BYTES) -> None:
        """`unit_bytes`: a unit is staged when it has come to so much."""
        self._sink, self._region_id, self._name, self._unit_bytes = sink, region_id, name, unit_bytes
        self._lock = threading.Lock()
        self._schema: pa.Schema | None = None
        self._tables: list[pa.Table] = []
        self._bytes = self._epoch = self._unit = self._given = 0
        self._keys: list[StagedKey] = []
        self.rows = 0

    def begin(self, epoch: int) -> None:
        """Nothing was staged in this epoch; what was before is void."""
        with self._lock:
            self._tables, self._keys = [], []
            self._bytes = self._unit = self._given = 0
            self._epoch = epoch

    def add(self, table: pa.Table) -> None:
        """Take rows in; the first tell the sink what they are.

        Raises:
            Exception: what the sink says against them.
        """
        with self._lock:
            if self._sink is None:
                return
            if self._schema is None or not table.schema.equals(self._schema):
                self._sink.check(table.schema)
                self._stage_rest()
                self._schema = table.schema
            self._tables.append(table)
            self._bytes += table.nbytes
            self.rows += table.num_rows
            if self._bytes >= self._unit_bytes:
                self._stage_rest()

    def give(self) -> tuple[StagedKey, ...]:
        """Stage the rest; the keys of all that was staged since the last sequence that counted."""
        with self._lock:
            if self._schema is not None and (self._tables or not self._keys):
                self._stage(self._schema.empty_table())  # an empty one too: lost output must not look like none
            self._given = len(self._keys)
            return tuple(self._keys)

    def counted(self) -> None:
        """What was given is in a complete sequence."""
        with self._lock:
            self._keys, self._given = self._keys[self._given :], 0

    def _stage_rest(self) -> None:
        if self._tables:
            self._stage(self._tables[0])

    def _stage(self, empty: pa.Table) -> None:
        assert self._sink is not None
        key = StagedKey(self._region_id, self._epoch, self._name, self._unit)
        self._sink.stage(key, pa.concat_tables(self._tables) if self._tables else empty)
        self._unit += 1
        self._keys.append(key)
        self._tables, self._bytes = [], 0
