"""The list of topics of a data folder: one JSON file, replaced as a whole on every change."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from kohort.config import from_properties, settings
from kohort.errors import CorruptDataError, ErrorCode, InvalidInputError
from kohort.log.checkpoints import decode_id, encode_id, replace_file
from kohort.log.config import LogConfig

FILE = "topics.json"
_VERSION = 1
_NAME_MAX = 249
_NAME = re.compile(r"[a-zA-Z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic.

    Attributes:
        configs: what was set explicitly, under Kafka's property names; everything else is the store's default.
    """

    name: str
    id: uuid.UUID
    partitions: int
    configs: Mapping[str, str]


class _Row(msgspec.Struct):
    name: str
    id: str
    partitions: int
    configs: dict[str, str]


class _File(msgspec.Struct):
    version: int
    topics: list[_Row]


def read_catalog(folder: Path) -> dict[str, Topic] | None:
    """The topics by name, None if there is no catalog. Raises CorruptDataError."""
    path = folder / FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        file = msgspec.json.decode(data, type=_File)
        topics = {row.name: Topic(row.name, decode_id(row.id), row.partitions, row.configs) for row in file.topics}
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptDataError(f"{path} can't be read: {error}") from error
    if file.version != _VERSION:
        raise CorruptDataError(f"{path} has version {file.version}, this program knows {_VERSION}")
    return topics


def write_catalog(folder: Path, topics: Mapping[str, Topic]) -> None:
    """Replace the catalog; durable when returned."""
    rows = [_Row(t.name, encode_id(t.id), t.partitions, dict(t.configs)) for t in topics.values()]
    replace_file(folder / FILE, msgspec.json.format(msgspec.json.encode(_File(_VERSION, rows)), indent=1))


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic that is to be made.

    Attributes:
        id: made up when not given.
    """

    name: str
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)
    id: uuid.UUID | None = None


class Names:
    """Names of topics, and which of them metrics don't tell apart."""

    def __init__(self, names: Iterable[str]) -> None:
        self._by_metric = {_metric_name(name): name for name in names}

    def add(self, name: str) -> None:
        self._by_metric[_metric_name(name)] = name

    def remove(self, name: str) -> None:
        self._by_metric.pop(_metric_name(name), None)

    def check(self, name: str) -> None:
        """Kafka's rules for names of new topics. Raises InvalidInputError."""
        if not name or len(name) > _NAME_MAX or name in (".", "..") or not _NAME.fullmatch(name):
            raise InvalidInputError(
                f"topic name {name[:300]!r} is not allowed: 1 to {_NAME_MAX} of letters, digits, '.', '_' and '-'",
                ErrorCode.INVALID_TOPIC_EXCEPTION,
            )
        other = self._by_metric.get(_metric_name(name))
        if other == name:
            raise InvalidInputError(f"topic {name!r} exists", ErrorCode.TOPIC_ALREADY_EXISTS)
        if other is not None:
            raise InvalidInputError(
                f"topic name {name!r} differs from {other!r} only by '.' and '_', which metrics don't tell apart",
                ErrorCode.INVALID_TOPIC_EXCEPTION,
            )


def _metric_name(name: str) -> str:
    return name.replace(".", "_")


def effective_config(defaults: LogConfig, configs: Mapping[str, str]) -> LogConfig:
    """Defaults with a topic's explicit configs. Raises InvalidInputError (INVALID_CONFIG)."""
    try:
        explicit = from_properties(LogConfig, configs)
    except InvalidInputError as error:
        raise InvalidInputError(error.message, ErrorCode.INVALID_CONFIG) from None
    known = settings(LogConfig)
    fields = [known[key].field for key in configs]
    return replace(defaults, **{field: getattr(explicit, field) for field in fields})
