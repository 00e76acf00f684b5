"""Where `kohort consume` writes records: text, JSON lines, an Arrow stream or a Parquet file.

Offsets are committed for records that are written whole, so that every write goes through `WholeWrites`.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, cast

from kohort.cli.app import UsageError
from kohort.cli.output import printable, printable_json
from kohort.cli.record_json import rows_of
from kohort.cli.whole_writes import WholeWrites

Format = Literal["text", "json", "arrow", "parquet"]


class RecordWriter:
    """Takes what a poll returned and writes it in one format.

    Attributes:
        whole_when_closed: whether records can be read back only after `close`, so that their offsets are not committed
            before.
    """

    whole_when_closed = False

    def __init__(self, out: WholeWrites) -> None:
        self.out = out

    def write(self, batch: Any) -> None:
        """Write out one Arrow batch, wholly, before returning."""
        raise NotImplementedError

    def close(self) -> None:
        """Write what the format wants at the end."""


@contextlib.contextmanager
def record_writer(format: Format, output: Path | None, print_key: bool, escape: bool | None) -> Iterator[RecordWriter]:
    """A writer of this format, which is closed at the end; after an error it is abandoned instead.

    Args:
        format: the format.
        output: the file; None: standard output.
        print_key: text with the key and a tab before the value.
        escape: whether control characters are escaped in text and JSON; None: on a terminal.

    Raises:
        OSError: the file can't be opened or written.
    """
    with contextlib.ExitStack() as closing:
        out = WholeWrites(_standard_output() if output is None else closing.enter_context(output.open("wb")).fileno())
        escape = out.isatty() if escape is None else escape
        writer: RecordWriter
        if format == "text":
            writer = _Text(out, print_key, escape)
        elif format == "json":
            writer = _JsonLines(out, escape)
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
                out.sync()


def _standard_output() -> int:
    try:
        sys.stdout.flush()
        return sys.stdout.fileno()
    except (AttributeError, io.UnsupportedOperation) as error:  # None where the caller closed it
        raise UsageError("there is no standard output: give --output FILE") from error


class _Text(RecordWriter):
    def __init__(self, out: WholeWrites, print_key: bool, escape: bool) -> None:
        super().__init__(out)
        self._print_key = print_key
        self._escape = escape

    def write(self, batch: Any) -> None:
        lines = [value or b"" for value in batch.column("value").to_pylist()]
        if self._print_key:
            keys = batch.column("key").to_pylist()
            lines = [(key or b"") + b"\t" + value for key, value in zip(keys, lines, strict=True)]
        if self._escape:
            lines = [printable(line.decode(errors="backslashreplace"), keep="\t\n").encode() for line in lines]
        self.out.write(b"\n".join(lines) + b"\n")


class _JsonLines(RecordWriter):
    def __init__(self, out: WholeWrites, escape: bool) -> None:
        super().__init__(out)
        self._escape = escape

    def write(self, batch: Any) -> None:
        import msgspec

        encode = msgspec.json.Encoder().encode
        lines = [encode(row) for row in rows_of(batch)]
        if self._escape:
            lines = [printable_json(line.decode()).encode() for line in lines]
        self.out.write(b"\n".join(lines) + b"\n")


class _Columns(RecordWriter):
    """An Arrow stream or a Parquet file; opened with the first batch, whose schema it has."""

    def __init__(self, out: WholeWrites, format: Format) -> None:
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
