"""A file of a Spark checkpoint's offset log as its lines: read, changed at one source, and written as Spark would.

`offsets/N` has a version, a line of metadata (watermark, settings), then a line for each source: its offset as JSON, or
`-` before it has one. In version 2 the name or number of the source stands before its JSON. Lines of other sources and
the metadata pass through unchanged, byte for byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from kohort.errors import CorruptDataError, InvalidInputError
from kohort.spark.source.kafka_offsets import is_kafka_offset

_VERSIONS: Final = ("v1", "v2")
_NAMED: Final = re.compile(r'^([^{"\s:]+):(.*)$', re.DOTALL)


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One source of a batch.

    Attributes:
        name: the folder of the source below `sources/`: its number, or the name it was given.
        prefix: what stands before the JSON in the line.
        text: the JSON as it stands there; `-` without an offset.
    """

    name: str
    prefix: str
    text: str

    @property
    def offset(self) -> Any:
        """The parsed JSON; None without an offset, and for text that is not JSON (another source's own form)."""
        try:
            return json.loads(self.text)
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of the offset log.

    Attributes:
        head: the version and the metadata, each with its line's end.
        sources: in the order of the file.
    """

    head: str
    sources: tuple[SourceLine, ...]

    @classmethod
    def parse(cls, path: str, raw: bytes) -> LogFile:
        """Read a file.

        Raises:
            CorruptDataError: the file is not what Spark writes.
            InvalidInputError: a later Spark wrote it.
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
            sources.append(SourceLine(name, prefix, text))
        return cls(f"{version}\n{metadata}\n", tuple(sources))

    def kafka_sources(self) -> Iterator[tuple[str, Any]]:
        """Yield name and offset of each source that is Spark's Kafka source."""
        for source in self.sources:
            if is_kafka_offset(source.offset):
                yield source.name, source.offset

    def with_offset(self, name: str, offset: object) -> LogFile:
        """Return the file with another offset of one source."""
        text = json.dumps(offset, separators=(",", ":"))
        return replace(
            self,
            sources=tuple(replace(source, text=text) if source.name == name else source for source in self.sources),
        )

    def to_bytes(self) -> bytes:
        """Return the file as Spark writes it: no line's end after the last line."""
        return (self.head + "\n".join(source.prefix + source.text for source in self.sources)).encode()
