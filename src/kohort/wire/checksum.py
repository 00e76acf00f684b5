"""CRC-32C, the checksum of record batches and of what the log keeps beside them.

The compiled kernel has it (`_record_walk.pyx`). Where that was not built, the package `crc32c` replaces it. Its import
takes 25 ms, an eighth of a broker's start: it reads installed metadata, and loads argparse and email.

Source: RFC 3720, section 12.1; Apache Kafka's `DefaultRecordBatch`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Final


def _implementation() -> Callable[..., int]:
    try:
        checksum: Callable[..., int] = importlib.import_module("kohort.wire._record_walk").crc32c
    except (AttributeError, ImportError):  # a kernel that an older checkout built has none
        import crc32c as package

        checksum = package.crc32c
    return checksum


crc32c: Final = _implementation()
"""Return the CRC-32C of bytes, continued from that of the bytes before: `crc32c(data, crc=0)`."""
