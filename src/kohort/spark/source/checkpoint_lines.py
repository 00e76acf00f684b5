"""The files of a Spark checkpoint's offset log as lines: parsed, changed for one source, and written as Spark would.

A file `offsets/N` begins with a version and a line of metadata (watermark, settings). A line for each source follows:
its offset as JSON, or `-` before the source has one. In version 2 the source's name or number stands before its JSON.
Lines of other sources and the metadata pass through unchanged, byte for byte.
"""

from __future__ import annotations

import json  # not msgspec: text of other programs, with NaN and integers of any size
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from kohort.errors import CorruptDataError, InvalidInputError
from kohort.spark.source.kafka_offsets import is_kafka_offset

_VERSIONS: Final = ("v1", "v2")
_NAMED: Final = re.compile(r'^([^{"\s:]+):(.*)$', re.DOTALL)


@dataclass(frozen=True, slots=True)
class OffsetLogLine:
    """The line of one source in a batch.

    Attributes:
        name: the source's folder below `sources/`: its number, or the name that it was given.
        prefix: the text before the JSON in the line.
        text: the JSON as written; `-` without an offset.
    """

    name: str
    prefix: str
    text: str

    @property
    def offset(self) -> Any:
        """The parsed JSON; None if there is no offset, and for text that is not JSON (another source's own format)."""
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return None


@dataclass(frozen=True, slots=True)
class OffsetLogFile:
    """One file of the offset log.

    Attributes:
        head: the version and the metadata, each with its newline.
        sources: the sources' lines in the order of the file.
    """

    head: str
    sources: tuple[OffsetLogLine, ...]

    @classmethod
    def parse(cls, path: str, raw: bytes) -> OffsetLogFile:
        """Parse a file of a checkpoint's offset log.

        Raises:
            CorruptDataError: the file is not in Spark's format.
            InvalidInputError: a newer Spark wrote it.
        """
        try:
            version, metadata, *lines = raw.decode().split("\n")
        except ValueError as error:
            raise CorruptDataError(f"{path} is not an offset log of Spark: {error}") from error
        if version.strip() not in _VERSIONS:
            raise InvalidInputError(
                f"{path} begins with {version[:40]!r}; this kohort knows {' and '.join(_VERSIONS)}: a later Spark "
                "wrote it, or it is not an offset log"
            )
        sources = []
        for number, line in enumerate(line for line in lines if line.strip()):
            named = _NAMED.match(line) if version.strip() == "v2" else None
            name, prefix, text = (str(number), "", line) if named is None else (named[1], f"{named[1]}:", named[2])
            sources.append(OffsetLogLine(name, prefix, text))
        return cls(f"{version}\n{metadata}\n", tuple(sources))

    def kafka_sources(self) -> Iterator[tuple[str, Any]]:
        """Yield name and offset of each source that is Spark's Kafka source."""
        for source in self.sources:
            if is_kafka_offset(source.offset):
                yield source.name, source.offset

    def with_offset(self, name: str, offset: object) -> OffsetLogFile:
        """Return a copy of this file with another offset for the source of this name."""
        text = json.dumps(offset, separators=(",", ":"))
        return replace(
            self,
            sources=tuple(replace(source, text=text) if source.name == name else source for source in self.sources),
        )

    def to_bytes(self) -> bytes:
        """Return the file as Spark writes it: without a newline after the last line."""
        return (self.head + "\n".join(source.prefix + source.text for source in self.sources)).encode()
