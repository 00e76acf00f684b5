"""Our declarations against the message schemas in Apache Kafka's own jars, field by field.

The jars hold the JSON that Kafka's classes are generated from. Skipped where Maven cannot resolve them.
"""

from __future__ import annotations

import inspect
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kohort.wire import journal
from kohort.wire.framing import APIS
from kohort.wire.message import Message
from kohort.wire.schema import NEVER, Field, Struct
from tests.support import maven
from tests.support.apache_kafka import kafka_jars

OWN_APIS = 10_000
"""APIs from this key on are kohort's own, as are tagged fields from this tag on."""
OWN_TAGS = 10_000
_BOTH = "callers fill the layouts of older and newer versions at once"
DROPPED = {
    "DeleteTopicsRequest.topics": _BOTH,
    "FetchRequest.topics.partitions.last_fetched_epoch": "our consumer always sends it; older brokers need not know",
    "FindCoordinatorRequest.coordinator_keys": _BOTH,
    "FindCoordinatorRequest.key": _BOTH,
    "LeaveGroupRequest.member_id": _BOTH,
    "LeaveGroupRequest.members": f"{_BOTH}; whoever removes several members asks for version 3 at least",
    "OffsetFetchRequest.group_id": _BOTH,
    "OffsetFetchRequest.groups": _BOTH,
    "OffsetFetchRequest.require_stable": "Kafka's client drops it too for brokers that have no such field",
    "OffsetFetchRequest.topics": _BOTH,
    "UpdateFeaturesRequest.feature_updates.allow_downgrade": _BOTH,
    "UpdateFeaturesRequest.feature_updates.upgrade_type": _BOTH,
}
"""Fields that a version without them drops here, while Kafka's code refuses a value, and why."""
MESSAGES = [kind for api in APIS.values() if api.key < OWN_APIS for kind in (api.request, api.response)]
RECORDS = [
    kind
    for name, kind in vars(journal).items()
    if inspect.isclass(kind) and issubclass(kind, Message) and re.search(r"(Key|Value)$", name)
]


@pytest.fixture(scope="module")
def schemas() -> dict[str, dict[str, Any]]:
    """Every JSON schema in the jars by its name."""
    try:
        folder = kafka_jars()
    except maven.MavenUnavailable as error:
        pytest.skip(f"Apache Kafka's jars can't be had here: {error}")
    return {schema["name"]: schema for jar in sorted(folder.glob("kafka*.jar")) for schema in _schemas_in(jar)}


def _schemas_in(jar: Path) -> Iterator[dict[str, Any]]:
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            if name.startswith("common/message/") and name.endswith(".json"):
                text = archive.read(name).decode("utf-8")
                yield json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))


def _span(text: str) -> tuple[int, int]:
    """`3+`, `0-5`, `4` and `none` as the first and the last version."""
    if text == "none":
        return NEVER, NEVER
    first, separator, last = text.partition("-")
    if not separator:
        return (int(text[:-1]), NEVER) if text.endswith("+") else (int(text), int(text))
    return int(first), int(last)


def _snake(name: str) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", re.sub(r"(?<=[A-Z])(?=[A-Z][a-z])", "_", name)).lower()
    return re.sub(r"_i_ds$", "_ids", words)


class Comparison:
    """Differences between one of our messages and Kafka's schema, in both directions."""

    def __init__(self, kind: type[Message], schema: dict[str, Any]) -> None:
        self.kind = kind
        self.common = {shared["name"]: shared["fields"] for shared in schema.get("commonStructs", ())}
        self.lowest, self.highest = kind.MIN_VERSION, kind.MAX_VERSION
        self.found: list[str] = []
        lowest, highest = _span(schema["validVersions"])
        self.note("lowest version", max(self.lowest, lowest), self.lowest)
        self.note("highest version", highest if highest != NEVER else self.highest, self.highest)
        flexible, _ = _span(schema.get("flexibleVersions", "none"))
        self.note("first flexible version", self._seen(flexible), self._seen(kind.FLEXIBLE_SINCE))
        self.fields(kind, schema["fields"], self.lowest, self.highest, kind.__name__)

    def note(self, what: str, theirs: Any, ours: Any) -> None:
        if theirs != ours:
            self.found.append(f"{what}: Kafka {theirs!r} | ours {ours!r}")

    def _seen(self, version: int) -> int:
        """A bound within the versions that we have."""
        return min(max(version, self.lowest), self.highest + 1)

    def fields(self, kind: type[Struct], theirs: list[dict[str, Any]], low: int, high: int, path: str) -> None:
        """The fields of one structure that versions `low` to `high` have."""
        expected = {}
        for field in theirs:
            first, last = _span(field.get("versions", field.get("taggedVersions", "0+")))
            if max(first, low) <= min(last, high):
                expected[_name(field["name"], kind)] = field
        declared = {
            field.name: field
            for field in kind.FIELDS
            if not (field.tag is not None and field.tag >= OWN_TAGS) and field.since <= high and field.until >= low
        }
        self.note(f"{path}: fields", sorted(expected), sorted(declared))
        for version in range(low, high + 1):
            ordered = [field.name for field in declared.values() if field.tag is None and field.is_in_version(version)]
            self.note(f"{path}: order in version {version}", [name for name in expected if name in {*ordered}], ordered)
        for name in expected.keys() & declared.keys():
            self.field(declared[name], expected[name], low, high, f"{path}.{name}")

    def field(self, ours: Field, theirs: dict[str, Any], low: int, high: int, path: str) -> None:
        """The facts of one field."""
        first, last = _span(theirs.get("versions", theirs.get("taggedVersions", "0+")))
        first, last = max(first, low), min(last, high)
        self.note(f"{path}: first version", first, max(ours.since, low))
        self.note(f"{path}: last version", last, min(ours.until, high))
        nullable, _ = _span(theirs.get("nullableVersions", "none"))
        expected = min(max(nullable, first), last + 1)
        self.note(f"{path}: null since", expected, min(max(ours.null_since, first), last + 1))
        self.note(f"{path}: tag", theirs.get("tag"), ours.tag)
        if first > low or last < high:  # a version lacks it: is a value dropped there, or refused?
            ignorable = str(theirs.get("ignorable", False)).lower() == "true"
            self.note(f"{path}: ignorable", ignorable or path in DROPPED, ours.ignorable)
            if path in DROPPED:
                self.note(f"{path}: exception", False, ignorable)
        kind = theirs["type"]
        is_array = kind.startswith("[]")
        self.note(f"{path}: is a list", is_array, ours.kind == "array")
        if is_array != (ours.kind == "array"):
            return
        element = ours.element if is_array else ours
        assert element is not None
        kind = kind.removeprefix("[]")
        inner = theirs.get("fields") or self.common.get(kind)
        if inner is None:
            self.note(f"{path}: type", kind, element.kind)
            self._default(ours, theirs, is_array, path)
        elif element.struct is None:
            self.found.append(f"{path}: Kafka has a structure, ours is {element.kind}")
        else:
            self.fields(element.struct, inner, first, last, path)

    def _default(self, ours: Field, theirs: dict[str, Any], is_array: bool, path: str) -> None:
        if is_array or "default" not in theirs or ours.kind in ("uuid", "bytes", "records"):
            return
        said = theirs["default"]
        given = ours.default
        if said in ("null", None):
            self.note(f"{path}: default", None, given)
        elif ours.kind == "bool":
            self.note(f"{path}: default", str(said).lower() == "true", given)
        elif ours.kind == "string":
            self.note(f"{path}: default", said, given)
        else:
            number = float(said) if ours.kind == "float64" else int(str(said), 0)
            self.note(f"{path}: default", number, given)


def _name(theirs: str, kind: type[Struct]) -> str:
    """Our name of one of Kafka's fields: milliseconds may be said of it."""
    name = _snake(theirs)
    names = {field.name for field in kind.FIELDS}
    return f"{name}_ms" if name not in names and f"{name}_ms" in names else name


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_message_is_declared_as_kafka_has_it(kind: type[Message], schemas: dict[str, dict[str, Any]]) -> None:
    differences = Comparison(kind, schemas[kind.__name__]).found
    assert not differences, "\n".join(["", *differences])


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_record_is_declared_as_kafka_has_it(kind: type[Message], schemas: dict[str, dict[str, Any]]) -> None:
    differences = Comparison(kind, schemas[kind.__name__]).found
    assert not differences, "\n".join(["", *differences])
