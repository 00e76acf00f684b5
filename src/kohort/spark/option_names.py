"""The names among the options of a read or a write: kohort's, the client's, or unknown.

Spark's Kafka source and sink ignore options that they do not know. Jobs carry many of those: options of other formats,
of a sink on a source, of Spark's own writers. A job that moves here keeps them, with one warning that lists them all.
Only a name that looks like a misspelt option of kohort is an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from kohort.errors import InvalidInputError
from kohort.settings.config import settings

KAFKA_PREFIX = "kafka."
SERVERS = "kafka.bootstrap.servers"
STRICT = "strictOptions"
MISSPELT_LETTERS = 2
"""A name that differs from an option's by at most this many letters is taken for a misspelling of it."""
SPELLINGS = {
    name.lower(): name
    for name in (
        "assign",
        "checkpointLocation",
        "columnNameOfCorruptRecord",
        "connectionName",
        "dateFormat",
        "endingOffsets",
        "endingOffsetsByTimestamp",
        "endingTimestamp",
        "failOnDataLoss",
        "includeHeaders",
        "inferSchema",
        "maxFilesPerTrigger",
        "maxOffsetsPerTrigger",
        "maxTriggerDelay",
        "minOffsetsPerTrigger",
        "minPartitions",
        "multiLine",
        "numPartitions",
        "outputMode",
        "queryName",
        "startingOffsets",
        "startingOffsetsByTimestamp",
        "startingTimestamp",
        "subscribePattern",
        "timestampFormat",
        "topicName",
        "typeOfData",
    )
}
"""Proper spelling of the options of other sources, sinks and formats: Spark passes every name in lower case."""
TABLE_PROPERTIES = frozenset(
    ("collation", "comment", "external", "is_managed_location", "location", "owner", "provider")
)
"""Properties of a table in Spark's catalog, which `CREATE TABLE` passes beside the options.

Source: Apache Spark's TableCatalog.
"""
TABLE_OPTION_PREFIX = "option."
"""`CREATE TABLE` passes each option a second time, with this prefix."""
OF_A_TABLE = (
    "the options of CREATE TABLE (Spark hands over none of them when the table is read or written: name them there by "
    "WITH (…), or use CREATE TEMPORARY VIEW)"
)


@dataclass(frozen=True, slots=True)
class ClassifiedOptions:
    """The options of one read or write, sorted into those of kohort, of the Kafka client, and unknown ones.

    Attributes:
        own: kohort's options, with their names as declared.
        kafka: options with the prefix `kafka.`, without the prefix.
        unknown: names of no known option.
        of_a_table: whether they are from a `CREATE TABLE`, which Spark asks for the columns alone.
    """

    own: dict[str, str] = field(default_factory=dict)
    kafka: dict[str, str] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    of_a_table: bool = False

    def ignored_options(self, of_sparks: str) -> list[str | None]:
        """Return notes on the options without effect: all of a `CREATE TABLE`, and unknown ones.

        Args:
            of_sparks: the counterpart of Spark's own that ignores unknown options too.
        """
        unknown = ignored_options_note(self.unknown, f"{of_sparks} ignores {pronoun_for(self.unknown)} too")
        return [OF_A_TABLE if self.of_a_table else None, unknown]


def classify_options(raw: Mapping[str, str], declared: type, ignored: Iterable[str] = ()) -> ClassifiedOptions:
    """Sort given options into those of kohort, of the Kafka client, and unknown ones.

    Args:
        raw: the options as Spark passes them; case does not matter.
        declared: a class whose fields are options.
        ignored: names, in lower case, that are ignored without a warning.

    Raises:
        InvalidInputError: a name is probably a misspelt option, or there are no bootstrap servers.
    """
    spelling = {name.lower(): name for name in _names(declared)}
    names = {key.lower() for key in raw}
    given = ClassifiedOptions(of_a_table={"provider", "owner"} <= names)
    for key, value in raw.items():
        lower = key.lower()
        if given.of_a_table and (lower in TABLE_PROPERTIES or lower.startswith(TABLE_OPTION_PREFIX)):
            continue
        if lower in spelling:
            given.own[spelling[lower]] = value
        elif lower.startswith(KAFKA_PREFIX):
            given.kafka[lower.removeprefix(KAFKA_PREFIX)] = value
        elif lower not in ignored:
            meant = nearest_known_name(lower, [*spelling, SERVERS])
            if meant is not None:
                raise InvalidInputError(f"unknown option {key}; did you mean {spelling.get(meant, meant)}?")
            given.unknown.append(key if key != lower else SPELLINGS.get(lower, key))
    if not given.kafka.get("bootstrap.servers", "").strip():
        hint = "; did you mean it by bootstrap.servers?" if "bootstrap.servers" in given.unknown else ""
        if not raw:
            hint = "; Spark hands over no option of a CREATE TABLE: use CREATE TEMPORARY VIEW, or SELECT … WITH (…)"
        raise InvalidInputError(f"the option {SERVERS} is missing: the brokers to start from, as host:port{hint}")
    return given


def _names(declared: type) -> Iterable[str]:
    for name, setting in settings(declared).items():
        yield name
        yield from setting.declaration.aliases


def nearest_known_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a name is a misspelling of; None if none is near enough."""
    distances = {
        other: edit_distance(name, other) for other in known if abs(len(name) - len(other)) <= MISSPELT_LETTERS
    }
    near = min(distances, key=distances.__getitem__, default=None)
    return near if near is not None and distances[near] <= MISSPELT_LETTERS else None


def edit_distance(first: str, second: str) -> int:
    """Return the edit distance of two words: letters added, left out, replaced or swapped with their neighbour."""
    rows = [list(range(len(second) + 1))]
    for i, letter in enumerate(first, 1):
        row = [i]
        for j, other in enumerate(second, 1):
            cost = min(rows[-1][j] + 1, row[j - 1] + 1, rows[-1][j - 1] + (letter != other))
            if i > 1 and j > 1 and (letter, first[i - 2]) == (second[j - 2], other):
                cost = min(cost, rows[-2][j - 2] + 1)
            row.append(cost)
        rows.append(row)
    return rows[-1][-1]


def ignored_options_note(names: Iterable[str], reason: str) -> str | None:
    """Return the names of options that have no effect, with the reason; None if there are none."""
    listed = ", ".join(names)
    return f"{listed} ({reason})" if listed else None


def pronoun_for(names: Collection[str]) -> str:
    """Return the pronoun for one name or several."""
    return "it" if len(names) == 1 else "these"


def ignored_options_warning(ignored_options: Iterable[str]) -> str | None:
    """Return the warning's text about all options that have no effect; None if there are none."""
    listed = "; ".join(ignored_options)
    return f"{listed}. {STRICT}=true makes them an error" if listed else None


def refuse_ignored_options(ignored_options: Iterable[str], strict: bool) -> None:
    """Refuse options that have no effect when strict options were asked for.

    Raises:
        InvalidInputError: an option would be ignored.
    """
    listed = "; ".join(ignored_options)
    if strict and listed:
        raise InvalidInputError(f"{STRICT}=true, and options would have no effect: {listed}")
