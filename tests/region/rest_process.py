"""Publishes a sequence through a REST catalog; its arguments are the address, the table, the mode and the sequence."""

from __future__ import annotations

import sys
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from kohort.region import IcebergTable
from kohort.region.staged import StagedKey

REGION = UUID(int=1)
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
OPTIONS: Final[dict[str, dict[str, Any]]] = {"append": {}, "update": {"mode": "update", "keys": ["id"]}}


def sink_at(address: str, table: str, mode: str, **catalog: str) -> IcebergTable:
    """Return the sink as a process has it; the tests reach one server directly and through proxies."""
    made = IcebergTable(table, catalog={"type": "rest", "uri": address, **catalog}, **OPTIONS[mode])
    made._place = f"iceberg:{table}"
    return made.bind("flights", REGION)


def key(unit: int) -> StagedKey:
    return StagedKey(REGION, 1, "größe/1", unit)


if __name__ == "__main__":
    sink_at(*sys.argv[1:4]).publish(int(sys.argv[4]), [key(int(sys.argv[4]))])
