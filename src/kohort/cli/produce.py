"""`kohort produce`: lines of text or of JSON into a topic."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from kohort.cli.app import DONE, FAILED, UsageError
from kohort.cli.common import Common
from kohort.cli.output import note, show_json
from kohort.errors import InvalidInputError, KafkaError

if TYPE_CHECKING:  # the client is imported by the commands that need it
    from kohort.client.producer.producer import Producer

_COMMON = Common()
Fields = dict[str, Any]
"""Arguments of `Producer.send` besides the topic."""


def produce(
    topic: str,
    file: Path | None = None,
    *,
    format: Literal["text", "json"] = "text",
    key_separator: str | None = None,
    partition: int | None = None,
    compression: str | None = None,
    common: Common = _COMMON,
) -> int:
    """Write records to a topic, one for each line.

    Args:
        topic: the topic.
        file: the lines; standard input when not given.
        format: text (a line is a value) or json (a line is an object with value, and perhaps key, headers,
            partition and timestamp_ms).
        key_separator: what parts key and value in a line of text, as : or a tab.
        partition: the partition of every record; by key when not given.
        compression: none, gzip, snappy, lz4 or zstd.
    """
    if key_separator is not None and (format != "text" or not key_separator):
        raise UsageError("--key-separator parts lines of text: it must not be empty, nor go with --format json")
    with ExitStack() as open_files:
        lines: BinaryIO = sys.stdin.buffer if file is None else open_files.enter_context(file.open("rb"))
        records = _from_json(lines) if format == "json" else _from_text(lines, key_separator)
        with _producer(common, compression) as producer:
            sent, failed = _send(producer, topic, records, partition)
    if common.json:
        show_json({"topic": topic, "sent": sent, "failed": [str(error) for error in failed]})
    else:
        note(f"{sent} records")
    for error in failed[:1]:
        note(f"kohort: {len(failed)} records were not delivered: {error}")
    return FAILED if failed else DONE


def _producer(common: Common, compression: str | None) -> Producer:
    from kohort.client.producer.producer import Producer
    from kohort.client.producer.settings import ProducerConfig

    servers, settings = common.client_settings(ProducerConfig)
    settings.setdefault("max.block.ms", common.call_ms)
    if compression is not None:
        settings["compression.type"] = compression
    common.reach()
    try:
        return Producer(servers, **settings)
    except InvalidInputError as error:
        raise UsageError(str(error)) from error


def _send(
    producer: Producer, topic: str, records: Iterator[Fields], partition: int | None
) -> tuple[int, list[KafkaError]]:
    """Sends them all; gives how many were delivered, and the errors of the others."""
    failed: list[KafkaError] = []
    count = 0

    def delivered(error: KafkaError | None, _: Any) -> None:
        if error is not None:
            failed.append(error)

    for fields in records:
        if partition is not None:
            fields["partition"] = partition
        producer.send(topic, **fields, on_delivery=delivered)
        count += 1
    producer.flush()
    return count - len(failed), failed


def _from_text(lines: BinaryIO, separator: str | None) -> Iterator[Fields]:
    cut = None if separator is None else separator.encode()
    for number, line in enumerate(lines, start=1):
        value = line.removesuffix(b"\n").removesuffix(b"\r")
        if cut is None:
            yield {"value": value}
            continue
        key, found, value = value.partition(cut)
        if not found:
            raise InvalidInputError(
                f"line {number} has no {separator!r} between key and value; nothing after it was sent"
            )
        yield {"key": key, "value": value}


def _from_json(lines: BinaryIO) -> Iterator[Fields]:
    import msgspec

    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            given = msgspec.json.decode(line)
            yield _fields(given)
        except (msgspec.DecodeError, TypeError, ValueError, KeyError) as error:
            raise InvalidInputError(f"line {number} is no record ({error}); nothing after it was sent") from error


def _fields(given: Any) -> Fields:
    if not isinstance(given, dict) or "value" not in given:
        raise ValueError("an object with value is wanted")
    fields: Fields = {"key": _bytes(given.get("key")), "value": _bytes(given["value"])}
    if isinstance(given.get("partition"), int):
        fields["partition"] = given["partition"]
    if isinstance(given.get("timestamp_ms"), int):
        fields["timestamp_ms"] = given["timestamp_ms"]
    headers = given.get("headers") or ()
    if headers:
        fields["headers"] = [(header["key"], _bytes(header.get("value"))) for header in headers]
    return fields


def _bytes(value: Any) -> bytes | None:
    """Text as UTF-8, `{"base64": …}` decoded, and anything else as the JSON that it is."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and set(value) == {"base64"}:
        return base64.b64decode(value["base64"], validate=True)
    import msgspec

    return msgspec.json.encode(value)
