"""A broker that checks produced records or not: `python -m bench.runners.broker_by_check FOLDER checked|unchecked`.

Without the check a batch's header and checksum are still looked at, but its records are neither decompressed nor
walked. No broker should run like that; the difference is what the check costs.
"""

from __future__ import annotations

import sys

from kohort.broker.run import run_broker
from kohort.log import validator
from kohort.wire.batch import BatchHeader
from kohort.wire.record_walk import RecordRules, WalkResult
from kohort.wire.schema import Buffer


def without_walk(_data: Buffer, _start: int, header: BatchHeader, _rules: RecordRules) -> WalkResult:
    """Accept every record, and the header's maximum timestamp."""
    return 0, header.records_count, header.max_timestamp, 0, None


def without_decompression(_self: validator.BatchValidator, _batch: Buffer, _codec: int, _limit: int) -> Buffer:
    """Leave a batch compressed."""
    return b""


def main() -> int:
    """Run it until SIGTERM."""
    folder, kind = sys.argv[1:]
    if kind == "unchecked":
        vars(validator)["walk_records"] = without_walk
        validator.BatchValidator._decompressed = without_decompression  # type: ignore[assignment,method-assign]
    return run_broker("127.0.0.1:0", folder, {"group.initial.rebalance.delay.ms": 0})


if __name__ == "__main__":
    sys.exit(main())
