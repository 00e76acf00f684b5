"""The TLS records of a listener's client, counted before OpenSSL decrypts them, and a bound of those without data.

An event loop decrypts for all of its clients. A record of 22 bytes costs it as much as one of 1,000. A key update
costs 50 microseconds. So the bytes alone do not bound the work.
"""

from __future__ import annotations

from collections.abc import Iterator

RECORD_HEADER_BYTES = 5
SILENT_RECORDS_MAX = 100
"""Records without data that a client may send, besides one for each MiB of data.

A key update takes OpenSSL 50 microseconds on the event loop, and its answer stays in memory until the next response.
Clients change their keys after gigabytes. OpenSSL itself has no bound.
"""
SILENT_RECORDS_EVERY_BYTES = 1 << 20


class TlsRecordCounter:
    """The boundaries of TLS records in a client's bytes, which show how much work OpenSSL is given at once."""

    __slots__ = ("_head", "_left", "_most")

    def __init__(self, most: int = SILENT_RECORDS_MAX) -> None:
        """Create a counter for a new connection. `most` bounds the records of one piece."""
        self._most = most
        self._head = b""  # the received part of a header
        self._left = 0  # bytes until the next header

    def split_by_records(self, data: bytes) -> Iterator[tuple[bytes, int]]:
        """Split received bytes into pieces in which at most `most` TLS records begin; yield each with that number."""
        start = count = 0
        at, end = self._left, len(data)
        while at < end:
            head = self._head + data[at : at + RECORD_HEADER_BYTES - len(self._head)]
            if len(head) < RECORD_HEADER_BYTES:
                self._head, at = head, end
                break
            at += RECORD_HEADER_BYTES - len(self._head) + (head[3] << 8 | head[4])
            self._head = b""
            count += 1
            if count == self._most and at < end:
                yield data[start:at], count
                start, count = at, 0
        self._left = at - end
        if start < end:
            yield data[start:], count


class EmptyTlsRecords:
    """A bounded count of a client's TLS records without data, which cost time. Data that it sends makes up for some."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0.0

    def count_records(self, records: int) -> None:
        """Add to the count the TLS records that are handed to OpenSSL."""
        self._count += records

    def credit_data(self, size: int) -> None:
        """Take back a record that carried `size` bytes of data, and as many empty ones as these bytes make up for."""
        self._count = max(0.0, self._count - 1 - size / SILENT_RECORDS_EVERY_BYTES)

    def check_bound(self) -> None:
        """Check that the count is within its limit, once everything that OpenSSL was given is decrypted.

        Raises:
            ConnectionAbortedError: the client sends too many.
        """
        if self._count > SILENT_RECORDS_MAX:
            raise ConnectionAbortedError("too many TLS records without data")
