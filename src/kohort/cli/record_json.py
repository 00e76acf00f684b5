"""Records as lines of JSON: `consume --format json` writes the lines that `produce --format json` reads.

A record that is consumed and produced again keeps its key, value, headers, timestamp and partition exactly. A record
without a timestamp (-1, from very old producers) has null, and gets the time at which it is produced again.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from kohort.errors import InvalidInputError
from kohort.settings.config import did_you_mean

Fields = dict[str, Any]
"""Arguments of `Producer.send` besides the topic."""
NO_TIMESTAMP = -1
"""The timestamp of a record that has none."""
FIELDS = (
    *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers", "decoded"),
    "timestamp_ms",
)
"""The fields of a line: those that `consume` writes, and `timestamp_ms`, which is easier to write by hand.

`decoded` is the value as a schema registry's schema reads it. `produce` writes the bytes of `value`.
"""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MS = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_LAST_MS = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
"""The times that ISO 8601 can write with a year of four digits."""
_HEADERS = 'headers must be a list of objects, as [{"key": "name", "value": "text"}]'
_FRACTION = re.compile(r"[.,](\d+)")


def batch_rows(batch: Any) -> Iterator[dict[str, Any]]:
    """Return the records of an Arrow batch as JSON objects, in the order of the batch.

    Args:
        batch: the result of `Consumer.poll_arrow`; its columns are the objects' fields.
    """
    import pyarrow as pa

    columns: dict[str, list[Any]] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name == "timestamp":
            columns[name] = [_time(micros // 1000) for micros in column.cast(pa.int64()).to_pylist()]
        elif name in ("key", "value"):
            columns[name] = [_readable(data) for data in column.to_pylist()]
        elif name == "headers":
            columns[name] = [_readable_headers(headers) for headers in column.to_pylist()]
        else:
            columns[name] = column.to_pylist()
    names = list(columns)
    for cells in zip(*columns.values(), strict=True):
        yield dict(zip(names, cells, strict=True))


def _time(milliseconds: int) -> Any:
    """Return a timestamp as ISO 8601 in UTC, or in ms if its year has not four digits; None: the record has none."""
    if milliseconds == NO_TIMESTAMP:
        return None
    if _FIRST_MS <= milliseconds <= _LAST_MS:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    return milliseconds


def _readable_headers(headers: Any) -> list[dict[str, Any]]:
    return [{"key": header["key"], "value": _readable(header["value"])} for header in headers or ()]


def _readable(data: bytes | None) -> Any:
    """Return bytes as text if they are UTF-8, else as an object that holds them in base 64."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def parse_record_line(line: bytes) -> Fields:
    """Parse a line of JSON, and return the record as arguments of `Producer.send`.

    Topic, offset and timestampType record a record's origin: their types are checked, but they are not used.

    Raises:
        InvalidInputError: the line is no JSON object, has an unknown field, or a field of the wrong type; names it.
    """
    try:
        return _parsed_fields(line)
    except RecursionError:  # msgspec's, which is also bounded by Python's limit
        raise InvalidInputError("the JSON is nested too deeply") from None


def _parsed_fields(line: bytes) -> Fields:
    import msgspec

    try:
        given = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError as error:
        raise InvalidInputError("a record is a JSON object with at least the field value") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"no JSON: {error}") from error
    for name in given:
        if name not in FIELDS:
            near = did_you_mean(name, FIELDS) or f"; there are {', '.join(FIELDS)}"
            raise InvalidInputError(f"unknown field {name!r}{near}")
    if "value" not in given:
        raise InvalidInputError("the field value is missing; a tombstone says it with null")
    fields: Fields = {name: _bytes(name, given[name]) for name in ("key", "value") if name in given}
    _typed(given, "topic", str, "text")
    _integer_in(given, "offset")
    _integer_in(given, "timestampType", most=1, least=-1)
    partition = _integer_in(given, "partition", most=2**31 - 1)
    if partition is not None:
        fields["partition"] = partition
    timestamp = _timestamp(given)
    if timestamp is not None:
        fields["timestamp_ms"] = timestamp
    if "headers" in given:
        fields["headers"] = _headers(given["headers"])
    return fields


def _typed(given: dict[str, Any], name: str, wanted: type, called: str, inside: str = "") -> Any:
    """Return a field's value after checking its type; None if the field is missing or null."""
    import msgspec

    try:
        value = msgspec.json.decode(given.get(name, b"null"))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"field {inside}{name}: {error}") from error
    if value is None or type(value) is wanted:
        return value
    raise InvalidInputError(f"field {inside}{name} must be {called}, not {_shown(given[name])}")


def _integer_in(given: dict[str, Any], name: str, most: int = 2**63 - 1, least: int = 0) -> int | None:
    called = f"an integer from {least} to {most}"
    value: int | None = _typed(given, name, int, called)
    if value is not None and not least <= value <= most:
        raise InvalidInputError(f"field {name} must be {called}, not {_shown(given[name])}")
    return value


def _timestamp(given: dict[str, Any]) -> int | None:
    """Return the milliseconds since 1970 of either timestamp field; both may be present if they agree."""
    plain = _integer_in(given, "timestamp_ms")
    if not bytes(given.get("timestamp", b"")).startswith(b'"'):
        written = _integer_in(given, "timestamp")
    else:
        text = _typed(given, "timestamp", str, "text")
        fraction = _FRACTION.search(text)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise InvalidInputError(
                f"field timestamp must be a time as 2026-01-31T12:00:00.123Z, or milliseconds, not {text!r}"
            ) from error
        if fraction is not None and fraction[1][3:].strip("0"):
            raise InvalidInputError(f"field timestamp: Kafka keeps milliseconds, {text!r} has more digits")
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
        written = (moment - _EPOCH) // timedelta(milliseconds=1)
        if written < 0:
            raise InvalidInputError(f"field timestamp: {text!r} is before 1970, which no producer may send")
    if plain is not None and written is not None and plain != written:
        raise InvalidInputError(f"fields timestamp and timestamp_ms disagree: {written} ms and {plain} ms")
    return plain if written is None else written


def _headers(raw: Any) -> list[tuple[str, bytes | None]]:
    import msgspec

    try:
        given = msgspec.json.decode(raw, type=list[dict[str, msgspec.Raw]] | None)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"field {_HEADERS}, not {_shown(raw)}") from error
    headers = []
    for number, header in enumerate(given or ()):
        unknown = [name for name in header if name not in ("key", "value")]
        if unknown:
            raise InvalidInputError(f"field headers[{number}] has an unknown field {unknown[0]!r}; {_HEADERS}")
        key = _typed(header, "key", str, "text", inside=f"headers[{number}].")
        if key is None:
            raise InvalidInputError(f"field headers[{number}].key must be text, not null")
        headers.append((key, _bytes(f"headers[{number}].value", header.get("value", b"null"))))
    return headers


def _bytes(name: str, raw: Any) -> bytes | None:
    """Return a field's bytes: text as UTF-8, `{"base64": …}` decoded, null as None, other JSON as it is written."""
    import msgspec

    text = bytes(raw)
    if text == b"null":
        return None
    try:
        if text.startswith(b'"'):
            decoded: str = msgspec.json.decode(text)
            return decoded.encode()
        if text.startswith(b"{"):
            given = msgspec.json.decode(text)
            if set(given) == {"base64"}:
                return base64.b64decode(given["base64"], validate=True)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InvalidInputError(f"field {name}: {error}") from error
    except (TypeError, ValueError) as error:  # characters beyond ASCII are no binascii.Error
        raise InvalidInputError(f"field {name}: what base64 holds is not base 64 ({error})") from error
    return text


def _shown(raw: Any) -> str:
    """Return a field's value as JSON for an error, cut to 60 characters."""
    text = bytes(raw).decode(errors="replace")
    return text if len(text) <= 60 else f"{text[:60]}…"
