"""The catalog of a data folder: the list of topics in one JSON file, which is replaced on every change."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from kohort.errors import CorruptDataError, ErrorCode, InvalidInputError
from kohort.ids import QUORUM_TOPIC, TOPIC_NAME_RULE, topic_name_allowed
from kohort.log.checkpoints import decode_id, encode_id, replace_file
from kohort.log.config import LogConfig, StoreLimits, check_config_combination, check_config_names
from kohort.settings.config import from_properties, parse_value, settings
from kohort.wire.checksum import crc32c

log = logging.getLogger("kohort.log")

L = TypeVar("L")

FILE = "topics.json"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class CatalogTopic:
    """One topic as the catalog has it: id, partition count and configs.

    Attributes:
        configs: explicitly set configs under Kafka's property names; all others have the store's defaults.
        unseen: group journals that were not loaded since the topic was created. Offsets in them under the topic's name
            belong to an earlier topic.
    """

    name: str
    id: uuid.UUID
    partitions: int
    configs: Mapping[str, str]
    unseen: tuple[int, ...] = ()


class _Row(msgspec.Struct, omit_defaults=True):
    name: str
    id: str
    partitions: int
    configs: dict[str, str]
    unseen: tuple[int, ...] = ()


class _CatalogFile(msgspec.Struct, omit_defaults=True):
    version: int
    topics: list[_Row]
    power_losses: int = 0
    removed: list[str] = []
    checksum: int = 0


def read_catalog(folder: Path) -> dict[str, CatalogTopic] | None:
    """Return the topics by name, or None if there is no catalog.

    Raises:
        CorruptDataError: the catalog can't be read.
    """
    found = _read_catalog(folder)
    return None if found is None else found.topics


class _Found(NamedTuple):
    """The parsed content of a catalog file whose version and checksum are right."""

    topics: dict[str, CatalogTopic]
    power_losses: int = 0
    removed: tuple[uuid.UUID, ...] = ()


def _read_catalog(folder: Path) -> _Found | None:
    path = folder / FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        file = msgspec.json.decode(data, type=_CatalogFile)
        topics = {row.name: _topic(row) for row in file.topics}
        removed = tuple(map(decode_id, file.removed))
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptDataError(f"{path} can't be read: {error}") from error
    if file.version != _VERSION:
        raise CorruptDataError(f"{path} has version {file.version}, this program knows {_VERSION}")
    if file.checksum and file.checksum != _checksum(data):
        raise CorruptDataError(
            f"{path} is damaged: its checksum does not fit. If it was edited on purpose, remove the checksum from it"
        )
    return _Found(topics, file.power_losses, removed)


def _checksum(data: bytes) -> int:
    """Return the CRC32C of a catalog's content besides its checksum, whatever the layout of the JSON text."""
    content = msgspec.json.decode(data, type=dict[str, Any])
    content.pop("checksum", None)
    return int(crc32c(msgspec.json.encode(content, order="sorted")))


def _topic(row: _Row) -> CatalogTopic:
    """Return the topic of a catalog row.

    Raises:
        ValueError: the topic id is malformed, or the name is not allowed: it might lead out of the data folder.
    """
    if not topic_name_allowed(row.name):
        raise ValueError(f"topic name {row.name[:300]!r} is not allowed: {TOPIC_NAME_RULE}")
    return CatalogTopic(row.name, decode_id(row.id), row.partitions, row.configs, row.unseen)


def write_catalog(
    folder: Path, topics: Mapping[str, CatalogTopic], power_losses: int = 0, removed: Collection[uuid.UUID] = ()
) -> None:
    """Replace the catalog file atomically; durable when this returns."""
    rows = [_Row(t.name, encode_id(t.id), t.partitions, dict(t.configs), t.unseen) for t in topics.values()]
    file = _CatalogFile(_VERSION, rows, power_losses, [encode_id(topic_id) for topic_id in removed])
    file.checksum = _checksum(msgspec.json.encode(file))
    replace_file(folder / FILE, msgspec.json.format(msgspec.json.encode(file), indent=1))


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic that is to be created.

    Attributes:
        id: the topic's id; generated if not given.
    """

    name: str
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)
    id: uuid.UUID | None = None


class TopicNames:
    """The names of existing topics, to refuse a new one that metrics can't distinguish, such as `a_b` beside `a.b`."""

    def __init__(self, names: Iterable[str]) -> None:
        self._by_metric = {_metric_name(name): name for name in names}

    def add(self, name: str) -> None:
        self._by_metric[_metric_name(name)] = name

    def remove(self, name: str) -> None:
        self._by_metric.pop(_metric_name(name), None)

    def check(self, name: str) -> None:
        """Check the name of a new topic by Kafka's rules.

        Raises:
            InvalidInputError: the name is invalid or taken.
        """
        if not topic_name_allowed(name):
            raise InvalidInputError(
                f"topic name {name[:300]!r} is not allowed: {TOPIC_NAME_RULE}",
                ErrorCode.INVALID_TOPIC_EXCEPTION,
            )
        if name == QUORUM_TOPIC:
            raise InvalidInputError(f"topic name {name!r} is the quorum's", ErrorCode.INVALID_REQUEST)
        other = self._by_metric.get(_metric_name(name))
        if other == name:
            raise InvalidInputError(f"topic {name!r} exists", ErrorCode.TOPIC_ALREADY_EXISTS)
        if other is not None:
            raise InvalidInputError(
                f"topic name {name!r} differs from {other!r} only by '.' and '_', which metrics don't tell apart",
                ErrorCode.INVALID_TOPIC_EXCEPTION,
            )


class Catalog:
    """The existing topics, in memory and in the catalog file, which agree.

    Attributes:
        topics: all topics by name, in the order of creation.
        by_id: all topics by id.
        names: the names that new topics must not conflict with.
        power_losses: how often the machine died while logs were open.
        removed: the ids of deleted topics whose folders may still be there.
    """

    def __init__(
        self,
        folder: Path,
        topics: dict[str, CatalogTopic],
        power_losses: int = 0,
        removed: Iterable[uuid.UUID] = (),
    ) -> None:
        self.topics = topics
        self.power_losses = power_losses
        self.removed = set(removed)
        self.by_id = {topic.id: topic for topic in topics.values()}
        self.names = TopicNames(topics)
        self._folder = folder
        self._unsure = False

    @classmethod
    def read(cls, folder: Path) -> Catalog | None:
        """Read the catalog, or return None if there is none.

        Raises:
            CorruptDataError: the catalog can't be read.
        """
        found = _read_catalog(folder)
        return None if found is None else cls(folder, *found)

    def record_power_loss(self) -> None:
        """Increase the stored count of power losses; durable when this returns."""
        self.power_losses += 1
        self._write_catalog(self.topics)

    def put_topics(self, topics: Mapping[str, CatalogTopic]) -> None:
        """Write new or changed topics to the catalog; durable when this returns.

        Raises:
            OSError: the file could not be written; nothing has changed.
        """
        self._write_catalog({**self.topics, **topics})
        self.topics.update(topics)
        for topic in topics.values():
            self.by_id[topic.id] = topic
            self.names.add(topic.name)

    def remove_topics(self, names: Collection[str]) -> list[CatalogTopic]:
        """Remove existing topics from the catalog; durable when this returns.

        Raises:
            OSError: the file could not be written; nothing has changed.
        """
        removed = {self.topics[name].id for name in names}
        self.removed |= removed
        try:
            self._write_catalog({name: topic for name, topic in self.topics.items() if name not in names})
        except OSError:
            self.removed -= removed
            raise
        gone = [self.topics.pop(name) for name in names]
        for topic in gone:
            del self.by_id[topic.id]
            self.names.remove(topic.name)
        return gone

    def forget_removed(self, topic_ids: Iterable[uuid.UUID]) -> None:
        """Forget deleted topics whose folders are gone or renamed; `rewrite_if_unsure` writes that to the file."""
        known = self.removed.intersection(topic_ids)
        self.removed -= known
        self._unsure = self._unsure or bool(known)

    def rewrite_if_unsure(self) -> None:
        """Write the catalog again if the file may differ from memory, for example after a failed write.

        Raises:
            OSError: the file could not be written.
        """
        if self._unsure:
            self._write_catalog(self.topics)

    def _write_catalog(self, topics: Mapping[str, CatalogTopic]) -> None:
        self._unsure = True
        write_catalog(self._folder, topics, self.power_losses, self.removed)
        self._unsure = False


@dataclass(slots=True)
class TopicDraft(Generic[L]):
    """Topics that one request creates or grows, with the logs of their new partitions. They are not visible yet."""

    topics: dict[str, CatalogTopic] = field(default_factory=dict)
    logs: dict[tuple[str, int], L] = field(default_factory=dict)
    names: TopicNames = field(default_factory=lambda: TopicNames(()))

    def check_partitions(self, name: str, partitions: int, added: int, there: int, limits: StoreLimits) -> None:
        """Check that the limits on partitions allow a new size of a topic.

        `partitions` is its new number of partitions, `added` of them are new, and `there` counts those of all topics
        now.

        Raises:
            InvalidInputError: a limit does not allow it, or `partitions` is below 1.
        """
        if partitions < 1:
            raise InvalidInputError(
                f"topic {name!r} needs at least one partition, not {partitions}", ErrorCode.INVALID_PARTITIONS
            )
        at_once = len(self.logs) + added
        if there + at_once > limits.partitions:
            raise InvalidInputError(
                f"{added} more partitions exceed the limit of {limits.partitions} (max.partitions)",
                ErrorCode.POLICY_VIOLATION,
            )
        if at_once > limits.changed_at_once:
            raise InvalidInputError(
                f"{at_once} partitions at once, the limit is {limits.changed_at_once}", ErrorCode.POLICY_VIOLATION
            )


def _metric_name(name: str) -> str:
    return name.replace(".", "_")


def effective_config(defaults: LogConfig, configs: Mapping[str, str]) -> LogConfig:
    """Return a topic's settings: the defaults, overridden by its explicit configs.

    Raises:
        InvalidInputError: a config is invalid (INVALID_CONFIG).
    """
    check_config_names(configs)
    try:
        explicit = from_properties(LogConfig, configs)
    except InvalidInputError as error:
        raise InvalidInputError(error.message, ErrorCode.INVALID_CONFIG) from None
    known = settings(LogConfig)
    fields = [known[key].field for key in configs]
    config = replace(defaults, **{field: getattr(explicit, field) for field in fields})
    check_config_combination(config)
    return config


def valid_stored_config(topic: str, defaults: LogConfig, configs: Mapping[str, str]) -> LogConfig:
    """Return the defaults with the valid configs of a stored topic. Invalid ones are logged and ignored."""
    usable = dict(configs)
    for key in configs:
        try:
            parse_value(settings(LogConfig)[key], configs[key], key)
        except (KeyError, InvalidInputError) as error:
            log.error("topic %s: config %s=%s ignored, the default applies: %s", topic, key, configs[key], error)
            del usable[key]
    try:
        return effective_config(defaults, usable)
    except InvalidInputError as error:
        log.error("topic %s: compaction lag configs ignored, the defaults apply: %s", topic, error.message)
        return effective_config(defaults, {key: usable[key] for key in usable if "compaction.lag" not in key})
