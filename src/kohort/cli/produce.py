"""`kohort produce`: lines of text or of JSON into a topic."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from kohort.cli.app import DONE, FAILED, UsageError
from kohort.cli.common import Common, check_names
from kohort.cli.output import count_with_noun, print_json, print_note
from kohort.cli.record_json import Fields, parse_record_line
from kohort.errors import InvalidInputError, KafkaError

if TYPE_CHECKING:  # the client is imported by the commands that need it
    from kohort.client.producer.producer import Producer

_COMMON = Common()
ERRORS_MAX = 1000
"""Delivery errors to keep: the first ones show the cause."""
ESCAPED_BYTES_MAX = 6
"""The most bytes of JSON for one byte of a record, as \\u0000."""
LINE_OVERHEAD_BYTES = 2**20
"""Bytes of a line that are not part of the record: names of fields, offset, blanks."""


def produce(  # noqa: PLR0913 - one keyword for each option
    topic: str,
    file: Path | None = None,
    *,
    format: Literal["text", "json"] = "text",
    key_separator: str | None = None,
    partition: int | None = None,
    by_key: bool = False,
    acks: Literal["all", "-1", "0", "1"] | None = None,
    compression: str | None = None,
    common: Common = _COMMON,
) -> int:
    """Write records to a topic, one for each line.

    A line of JSON is an object with `value`, and perhaps `key`, `headers` (a list of objects with key and value),
    `partition` and `timestamp_ms`. Text is sent as UTF-8, `{"base64": "…"}` as the bytes that it holds, null as null,
    and any other JSON as it is written. Lines of `consume --format json` are sent again exactly as they were: their
    `timestamp` counts; their `topic`, `offset` and `timestampType` say where they came from. An unknown field or a
    wrong type is an error.

    Args:
        topic: the topic.
        file: the lines; standard input when not given.
        format: text (a line is a value) or json (a line is an object).
        key_separator: The separator of key and value in a line of text, as : or a tab.
        partition: The partition of every record; when not given, the one that its line names, else by key.
        by_key: By key, whatever partition a line names: for a topic with another number of partitions.
        acks: all (the default): every replica in sync has the record when it counts as delivered; 1: the leader; 0: no
            answer is awaited.
        compression: none, gzip, snappy, lz4 or zstd.
    """
    if key_separator is not None and (format != "text" or not key_separator):
        raise UsageError("--key-separator parts lines of text: it must not be empty, nor go with --format json")
    check_names("topic", topic)
    if by_key and partition is not None:
        raise UsageError("--by-key and --partition exclude each other")
    if file is None and getattr(sys, "stdin", None) is None:
        raise UsageError("there is no standard input: name a FILE")
    with ExitStack() as open_files:
        source: BinaryIO = sys.stdin.buffer if file is None else open_files.enter_context(file.open("rb"))
        with _producer(common, compression, acks) as producer:
            if source.isatty():
                print_note("each line that you type is a record; Ctrl-D ends")
            lines = _lines(source, ESCAPED_BYTES_MAX * producer.config.max_request_size + LINE_OVERHEAD_BYTES)
            records = _from_json(lines) if format == "json" else _from_text(lines, key_separator)
            result = _send_records(producer, topic, records, partition, by_key)
    if common.json:
        print_json(
            {"topic": topic, "sent": result.sent, "not_delivered": result.not_delivered, "failed": result.errors}
        )
    else:
        print_note(count_with_noun(result.sent, "record"))
    for error in result.errors[:1]:
        print_note(f"kohort: {result.not_delivered} records were not delivered, the first of {error}")
    return FAILED if result.not_delivered else DONE


def _producer(common: Common, compression: str | None, acks: str | None) -> Producer:
    from kohort.client.producer.producer import Producer
    from kohort.client.producer.settings import ProducerConfig

    servers, settings = common.client_settings(ProducerConfig)
    settings.setdefault("max.block.ms", common.call_timeout_ms)
    if compression is not None:
        settings["compression.type"] = compression
    if acks is not None:
        settings["acks"] = "all" if acks == "-1" else acks
        if settings["acks"] != "all":  # idempotence needs all of them; a file that asks for both is refused
            settings.setdefault("enable.idempotence", False)
    common.check_reachable()
    try:
        return Producer(servers, **settings)
    except InvalidInputError as error:
        raise UsageError(str(error)) from error


class _Sent:
    """The counts of records that `kohort produce` has sent, and its first errors.

    Attributes:
        sent: the number of records that were delivered or are in flight.
        not_delivered: the number of records that failed.
        errors: the first `ERRORS_MAX` errors; each begins with the number of its line.
    """

    def __init__(self) -> None:
        self.sent = 0
        self.not_delivered = 0
        self.errors: list[str] = []

    def delivered(self, number: int, error: KafkaError | None, _: Any) -> None:
        """Record that the record of a line was delivered, or the error with which it failed."""
        if error is not None:
            self.sent -= 1
            self.not_delivered += 1
            if len(self.errors) < ERRORS_MAX:
                self.errors.append(f"line {number}: {error}")


def _send_records(
    producer: Producer, topic: str, records: Iterator[tuple[int, Fields]], partition: int | None, by_key: bool
) -> _Sent:
    """Send all records, and wait until each is delivered or has failed."""
    result = _Sent()
    try:
        for number, fields in records:
            if partition is not None:
                fields["partition"] = partition
            elif by_key:
                fields.pop("partition", None)
            try:
                producer.send(topic, **fields, on_delivery=partial(result.delivered, number))
            except InvalidInputError as error:
                raise _bad_line(number, error) from error
            result.sent += 1
    finally:  # the lines before one that is wrong are delivered too
        producer.flush()
    return result


def _lines(lines: BinaryIO, limit: int) -> Iterator[tuple[int, bytes]]:
    """Return lines with their numbers, without line ends.

    Args:
        lines: the input.
        limit: the maximum bytes of a line; more is not read into memory.
    """
    number = 0
    while line := lines.readline(limit + 1):
        number += 1
        if len(line) > limit:
            raise _bad_line(number, InvalidInputError(f"more than {limit} bytes, which no record may have"))
        yield number, line.removesuffix(b"\n").removesuffix(b"\r")


def _from_text(lines: Iterator[tuple[int, bytes]], separator: str | None) -> Iterator[tuple[int, Fields]]:
    cut = None if separator is None else separator.encode()
    for number, value in lines:
        if cut is None:
            yield number, {"value": value}
            continue
        key, found, value = value.partition(cut)
        if not found:
            raise _bad_line(number, InvalidInputError(f"no {separator!r} between key and value"))
        yield number, {"key": key, "value": value}


def _from_json(lines: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, Fields]]:
    for number, line in lines:
        if line.strip():
            try:
                yield number, parse_record_line(line)
            except InvalidInputError as error:
                raise _bad_line(number, error) from error


def _bad_line(number: int, error: KafkaError) -> InvalidInputError:
    return InvalidInputError(f"line {number}: {error.message}; nothing after it was sent", error.code)
