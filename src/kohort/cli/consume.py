"""`kohort consume`: records of topics as text, JSON lines, an Arrow stream or a Parquet file."""

from __future__ import annotations

import contextlib
import io
import select
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from cyclopts import Parameter

from kohort.cli.app import DONE, UsageError
from kohort.cli.common import Common, check_names, check_registry_option
from kohort.cli.output import count_with_noun, is_terminal, print_note, printable, printable_json
from kohort.cli.record_json import batch_rows
from kohort.cli.whole_writes import CompleteWrites
from kohort.errors import CorruptDataError, ErrorCode, InvalidInputError, NotFoundError, RetriableError
from kohort.settings.config import did_you_mean

if TYPE_CHECKING:
    from kohort.client.consumer.consumer import Consumer
    from kohort.ids import TopicPartition


# -- Writers of `kohort consume`: text, JSON lines, an Arrow stream or a Parquet file
#
# Offsets are committed only for completely written records. Every write therefore goes through `CompleteWrites`.

WRITE_BYTES = 1 << 20
"""Lines of this size are written at once."""
Format = Literal["text", "json", "arrow", "parquet"]


class RecordWriter:
    """The interface of a writer of record batches to the output of `kohort consume`, in one format.

    Attributes:
        whole_when_closed: whether records can be read back only after `close`, as in Parquet; offsets are then
            committed after it.
    """

    whole_when_closed = False

    def __init__(self, out: CompleteWrites) -> None:
        self.out = out

    def write(self, batch: Any) -> None:
        """Write one Arrow batch completely before returning."""
        raise NotImplementedError

    def close(self) -> None:
        """Write the end of the file, if the format has one."""


class ValueDecoder:
    """A decoder of values that begin with a schema id, to JSON. Values that can't be decoded are counted and shown raw.

    Attributes:
        unread: the number of values that can't be decoded.
        first: the topic, partition and offset of the first such value, and the reason.
    """

    def __init__(self, url: str) -> None:
        """Keep the registry's address; no request is sent yet.

        Raises:
            InvalidInputError: the URL is invalid.
        """
        from kohort.schema_registry.registry import SchemaRegistry

        self._registry = SchemaRegistry(url)
        self.unread = 0
        self.first = ""

    def decode_batch(self, batch: Any) -> Iterator[bytes | None]:
        """Yield the JSON of each value of an Arrow batch; None for a value that is null or can't be read.

        Raises:
            InvalidInputError: a library that reads such values is not installed.
            RetriableError: the registry can't be reached, or has a fault.
        """
        from kohort.schema_registry.shown_values import value_as_json

        for row, data in enumerate(batch.column("value").to_pylist()):
            shown = None
            try:
                shown = None if data is None else value_as_json(self._registry, data)
            except CorruptDataError as error:
                topic, partition, offset = (batch.column(name)[row] for name in ("topic", "partition", "offset"))
                self.first = self.first or f"{topic}-{partition}, offset {offset}: {error.message}"
                self.unread += 1
            yield shown


@contextlib.contextmanager
def record_writer(
    format: Format, output: Path | None, print_key: bool, escape: bool | None, decoded: ValueDecoder | None
) -> Iterator[RecordWriter]:
    """Open a writer for the block, and close it at the end. After an error, write nothing more.

    The output of a failed command then does not look complete.

    Args:
        format: the format.
        output: the file; None: standard output.
        print_key: whether text has the key and a tab before the value.
        escape: whether to escape control characters in text and JSON; None: only on a terminal.
        decoded: decodes values by their schemas, for text and JSON; None: values are shown as they are.

    Raises:
        OSError: the file can't be opened or written.
    """
    with contextlib.ExitStack() as closing:
        out = CompleteWrites(
            _standard_output() if output is None else closing.enter_context(output.open("wb")).fileno()
        )
        escape = out.isatty() if escape is None else escape
        writer: RecordWriter
        if format == "text":
            writer = _Text(out, print_key, escape, decoded)
        elif format == "json":
            writer = _JsonLines(out, escape, decoded)
        else:
            writer = _Columns(out, format)
        try:
            yield writer
        except BaseException:
            out.abandon()
            raise
        finally:
            writer.close()
            if writer.whole_when_closed:
                out.sync_output()


def _standard_output() -> int:
    try:
        sys.stdout.flush()
        return sys.stdout.fileno()
    except (AttributeError, io.UnsupportedOperation) as error:  # None where the caller closed it
        raise UsageError("there is no standard output: give --output FILE") from error


class _Text(RecordWriter):
    def __init__(self, out: CompleteWrites, print_key: bool, escape: bool, decoded: ValueDecoder | None) -> None:
        super().__init__(out)
        self._print_key = print_key
        self._escape = escape
        self._decoded = decoded

    def write(self, batch: Any) -> None:
        lines: Iterable[bytes] = (value or b"" for value in batch.column("value").to_pylist())
        if self._decoded is not None:
            lines = (shown or line for shown, line in zip(self._decoded.decode_batch(batch), lines, strict=True))
        if self._print_key:
            keys = batch.column("key").to_pylist()
            lines = ((key or b"") + b"\t" + value for key, value in zip(keys, lines, strict=True))
        if self._escape:
            lines = (printable(line.decode(errors="backslashreplace"), keep="\t\n").encode() for line in lines)
        _write_lines(self.out, lines)


class _JsonLines(RecordWriter):
    def __init__(self, out: CompleteWrites, escape: bool, decoded: ValueDecoder | None) -> None:
        super().__init__(out)
        self._escape = escape
        self._decoded = decoded

    def write(self, batch: Any) -> None:
        import msgspec

        encode = msgspec.json.Encoder().encode
        rows: Iterable[dict[str, Any]] = batch_rows(batch)
        if self._decoded is not None:
            pairs = zip(rows, self._decoded.decode_batch(batch), strict=True)
            rows = ({**row, "decoded": None if shown is None else msgspec.Raw(shown)} for row, shown in pairs)
        lines: Iterable[bytes] = (encode(row) for row in rows)
        if self._escape:
            lines = (printable_json(line.decode()).encode() for line in lines)
        _write_lines(self.out, lines)


def _write_lines(out: CompleteWrites, lines: Iterable[bytes]) -> None:
    """Write lines a part at a time: as JSON they may be much larger in memory than the records."""
    part = bytearray()
    for line in lines:
        part += line
        part += b"\n"
        if len(part) >= WRITE_BYTES:
            out.write(part)
            part = bytearray()
    out.write(part)


class _Columns(RecordWriter):
    """A writer of an Arrow stream or a Parquet file, opened with the schema of the first batch."""

    def __init__(self, out: CompleteWrites, format: Format) -> None:
        super().__init__(out)
        self.whole_when_closed = format == "parquet"  # its footer says where the columns are
        self._format = format
        self._writer: Any = None

    def write(self, batch: Any) -> None:
        if self._writer is None:
            self._open(batch.schema)
        self._writer.write_batch(batch)

    def _open(self, schema: Any) -> None:
        if self._format == "arrow":
            import pyarrow.ipc

            self._writer = pyarrow.ipc.new_stream(self.out, schema)
        else:
            import pyarrow.parquet

            self._writer = pyarrow.parquet.ParquetWriter(cast(Any, self.out), schema)

    def close(self) -> None:
        if self._writer is None:  # nothing came: a file without rows is still a file
            from kohort.columns import DecodeOptions
            from kohort.columns.arrow import schema

            self._open(schema(DecodeOptions()))
        self._writer.close()


_COMMON = Common()
_POLL_MS = 200
_LOOK_S = 1.0
"""Time between two looks of a member without partitions at the offsets that its group has committed."""
_HINT_S = 3.0
_ONLY_NEW = "no record came yet; those that are there already are read with --from-beginning"
_GONE = getattr(select, "POLLERR", 0) | getattr(select, "POLLHUP", 0)
"""Poll events of an end that is gone. macOS reports POLLNVAL for every terminal, which says nothing."""


def consume(  # noqa: PLR0913 - one keyword for each option
    *topics: str,
    group: str | None = None,
    format: Format | None = None,
    output: Path | None = None,
    from_beginning: bool = False,
    until_end: bool = False,
    max_messages: int | None = None,
    idle_timeout: int | None = None,
    print_key: bool = False,
    escape: Annotated[bool | None, Parameter(negative="--no-escape")] = None,
    schema_registry: str | None = None,
    common: Common = _COMMON,
) -> int:
    """Read records. Ends with Ctrl-C, or as --max-messages, --until-end and --idle-timeout say.

    Args:
        topics: the topics.
        group: Join this group: share the topics with its other members, and commit completely written records: each
            batch of text, JSON and Arrow, a Parquet file at its end.
        format: text (values, a line each; the default), json (an object each), arrow (an IPC stream), parquet (a file).
        output: The file to write; standard output when not given. Parquet needs one.
        from_beginning: Start at the first record where the group has no committed offset; else only new records come.
        until_end: Stop at the end offsets that the topics have at the start. A member of a group that has no partitions
            stops when the group has committed these offsets.
        max_messages: Stop after this many records.
        idle_timeout: Stop when no record came for this many milliseconds.
        print_key: Text with the key and a tab before the value.
        escape: Write control characters of text and JSON as escapes; --no-escape writes them raw. On a terminal they
            are escaped unless told otherwise, elsewhere raw.
        schema_registry: The URL of the schema registry that has the schemas of the values. Text shows them as JSON, and
            JSON has them as `decoded`. A URL with a password belongs into --command-config, as schema.registry.url.
    """
    if not topics:
        raise UsageError("name at least one topic")
    check_names("topic", *topics)
    check_names("group", *(() if group is None else (group,)))
    if common.json:
        if format not in (None, "json"):
            raise UsageError(f"--json and --format {format} are two formats: give one")
        format = "json"
    format = format or "text"
    for option, number in (("--max-messages", max_messages), ("--idle-timeout", idle_timeout)):
        if number is not None and number < 0:
            raise UsageError(f"{option} {number}: give a number from 0 on")
    if format == "parquet" and output is None:
        raise UsageError("a Parquet file needs a name: give --output FILE")
    if format == "arrow" and output is None and is_terminal(sys.stdout):
        raise UsageError("an Arrow stream is nothing to read on a terminal: give --output FILE, or a pipe")
    decoded = _decoded_values(common, schema_registry, format)
    with _consumer(common, group, from_beginning, max_messages) as consumer:
        only_new = consumer.config.auto_offset_reset == "latest"
        try:
            ends = _start_reading(consumer, topics, group, from_beginning, until_end)
        except NotFoundError as error:
            raise _with_nearest(error, topics, common) from None
        with _until_signal() as signalled:
            limits = ConsumeLimits(max_messages, idle_timeout, _readers_end() if output is None else None)
            limits.hint = _ONLY_NEW if only_new and is_terminal(sys.stderr) else ""
            with record_writer(format, output, print_key, escape, decoded) as writer:
                total = _pump(consumer, writer, signalled, ends, limits, group is not None)
            if group is not None and writer.whole_when_closed:
                consumer.commit()
    print_note(count_with_noun(total, "record"))
    if decoded is not None and decoded.unread:
        print_note(f"{decoded.unread} values can't be read by a schema, and are shown as they are; {decoded.first}")
    return DONE


def _decoded_values(common: Common, url: str | None, format: Format) -> ValueDecoder | None:
    """Return the decoder of values by their schemas, for text and JSON; None without a registry.

    Raises:
        UsageError: the URL is invalid, or the format is neither text nor JSON.
    """
    from kohort.client.settings import ConsumerConfig

    check_registry_option(url)
    if format not in ("text", "json"):
        if url is not None:
            raise UsageError(f"--schema-registry: the format {format} has the values' bytes; text and json show them")
        return None
    url = url or common.client_settings(ConsumerConfig)[1].get("schema.registry.url")
    try:
        return None if url is None else ValueDecoder(url)
    except InvalidInputError as error:
        raise UsageError(f"--schema-registry: {error.message}") from error


class ConsumeLimits:
    """The conditions that end `kohort consume`.

    Args:
        count: the number of records; None: no limit.
        idle_ms: the time without a record; None: no limit.
        readers_end: reports that nobody reads the output any more; None: the output is not a pipe.

    Attributes:
        hint: a note for a terminal where no record comes for `_HINT_S`; empty: none, or it is written.
    """

    def __init__(self, count: int | None, idle_ms: int | None, readers_end: select.poll | None) -> None:
        self.count = count
        self.idle_ms = idle_ms
        self.hint = ""
        self._readers_end = readers_end

    def check_reader(self) -> None:
        """Raise BrokenPipeError if the program that reads the output has ended, such as `head`.

        This is needed when no record comes, so that nothing is written.
        """
        if self._readers_end is not None and any(event & _GONE for _, event in self._readers_end.poll(0)):
            raise BrokenPipeError


def _readers_end() -> select.poll | None:
    """Return a poll object that reports when nobody reads standard output any more.

    None: standard output is no file, or the system has no `poll`.
    """
    try:
        number = sys.stdout.fileno()
    except (AttributeError, OSError):  # the caller closed standard output, or it is no file, as in tests
        return None
    if not hasattr(select, "poll"):  # Windows: the next write fails instead
        return None
    poll = select.poll()
    poll.register(number, 0)
    return poll


def _consumer(common: Common, group: str | None, from_beginning: bool, count: int | None) -> Consumer:
    from kohort.client.consumer.consumer import Consumer
    from kohort.client.settings import ConsumerConfig

    servers, settings = common.client_settings(ConsumerConfig)
    settings |= {"allow.auto.create.topics": False, "enable.auto.commit": False}
    settings.setdefault("default.api.timeout.ms", common.call_timeout_ms)
    if group is not None:
        settings["group.id"] = group
    if from_beginning or "auto.offset.reset" not in settings:
        settings["auto.offset.reset"] = "earliest" if from_beginning else "latest"
    settings["max.poll.records"] = -1 if count is None else max(1, min(count, 10_000))
    common.check_reachable()
    try:
        return Consumer(servers, **settings)
    except InvalidInputError as error:
        raise UsageError(str(error)) from error


class _Ends:
    """The end offsets at which `--until-end` stops, taken when the command starts.

    Args:
        consumer: the consumer that reads.
        partitions: the partitions of all topics.
        grouped: whether the consumer is a member of a group, which may assign none of them to it.
    """

    def __init__(self, consumer: Consumer, partitions: list[TopicPartition], grouped: bool) -> None:
        self._consumer = consumer
        self._offsets = consumer.end_offsets(partitions)
        starts = consumer.beginning_offsets(partitions) if grouped else {}
        self._to_commit = {part: end for part, end in self._offsets.items() if end > starts.get(part, end)}
        self._grouped = grouped
        self._look_s = 0.0

    def end_offsets_reached(self) -> bool:
        """Return whether all assigned partitions are read up to the end offsets.

        A group member without partitions is done when its group has committed these offsets.
        """
        mine = [partition for partition in self._consumer.assignment() if partition in self._offsets]
        if mine:
            return all(self._consumer.position(partition) >= self._offsets[partition] for partition in mine)
        return self._grouped and self._are_committed()

    def _are_committed(self) -> bool:
        now_s = time.monotonic()
        if now_s < self._look_s:
            return False
        self._look_s = now_s + _LOOK_S
        try:
            committed = self._consumer.committed(self._to_commit)
        except RetriableError:  # the coordinator restarts, for one
            return False
        return all((at := committed[part]) is not None and at.offset >= end for part, end in self._to_commit.items())


def _start_reading(
    consumer: Consumer, topics: tuple[str, ...], group: str | None, from_beginning: bool, until_end: bool
) -> _Ends | None:
    """Subscribe or assign the consumer to the topics; return the end offsets of --until-end, else None."""
    from kohort.ids import TopicPartition

    partitions = []
    for topic in topics:
        numbers = consumer.partitions_for_topic(topic)
        if not numbers:
            raise NotFoundError(f"there is no topic {topic!r}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partitions += [TopicPartition(topic, number) for number in sorted(numbers)]
    ends = _Ends(consumer, partitions, group is not None) if until_end else None
    if group is not None:
        consumer.subscribe(topics)
    else:
        consumer.assign(partitions)
        if from_beginning:
            consumer.seek_to_beginning(*partitions)
    return ends


def _with_nearest(error: NotFoundError, topics: tuple[str, ...], common: Common) -> NotFoundError:
    with common.admin() as admin:
        there = [topic.name for topic in admin.list_topics()]
    near = [did_you_mean(topic, there) for topic in topics if topic not in there]
    return NotFoundError(error.message + near[0] if near else error.message, error.code)


def _pump(
    consumer: Consumer,
    writer: RecordWriter,
    signalled: list[int],
    ends: _Ends | None,
    limits: ConsumeLimits,
    commit: bool,
) -> int:
    total = 0
    last = time.monotonic()
    while not signalled:
        left = None if limits.count is None else limits.count - total
        if left is not None and left <= 0:
            break
        batch = consumer.poll_arrow(timeout_ms=_POLL_MS, max_records=left)
        if batch is not None and batch.num_rows:
            writer.write(batch)
            total += batch.num_rows
            last = time.monotonic()
            if commit and not writer.whole_when_closed:
                writer.out.sync_output()
                consumer.commit()
        elif limits.idle_ms is not None and (time.monotonic() - last) * 1000 >= limits.idle_ms:
            break
        if ends is not None and ends.end_offsets_reached():
            break
        if limits.hint and not total and time.monotonic() - last >= _HINT_S:
            print_note(limits.hint)
            limits.hint = ""
        limits.check_reader()
    return total


@contextlib.contextmanager
def _until_signal() -> Iterator[list[int]]:
    """Append SIGTERM and SIGINT to the list during the block, so that polled records are still written and committed.

    The second signal raises KeyboardInterrupt, because a blocked reader of the output would delay the end for ever.
    Records that are not completely written are not committed.
    """
    got: list[int] = []

    def on_signal(number: int, _: Any) -> None:
        got.append(number)
        if len(got) > 1:
            raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, on_signal) for number in numbers]
    try:
        yield got
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
