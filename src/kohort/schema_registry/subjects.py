"""The subjects of the embedded schema registry: versions, ids, levels of compatibility, and the file that keeps them.

Each change is a line of JSON, which is on the disk before the change is answered. A last line that a crash has cut off
is removed at the next start. Source: Confluent's reference of the Schema Registry API, v1: error codes.
"""

from __future__ import annotations

import contextlib
import json  # not msgspec: schemas and requests are text of other programs
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Any

from kohort.errors import CorruptDataError, InvalidInputError, NotFoundError, RetriableError
from kohort.schema_registry.avro_limits import PRIMITIVE_SIZES, avro_schema
from kohort.schema_registry.avro_references import definition_name, full_name, inline_avro_references
from kohort.schema_registry.avro_values import avro_writer
from kohort.schema_registry.protobuf_schemas import Imports, ProtobufSchema, compile_protobuf
from kohort.schema_registry.registry import RegisteredSchema, SchemaReference, parse_references, resolve_imports

# -- Changes of Avro schemas that a registry refuses in a subject, by Avro's schema resolution
#
# Source: Avro's specification 1.12, Schema Resolution.

LEVELS = (
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
)
"""Which versions of a subject a new one is compared with, and in which direction, under Confluent's names."""
_PROMOTED = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""The types that a reader may have for each type of a writer, beside the same one."""


def avro_incompatibilities(level: str, new: str, olds: Sequence[str]) -> list[str]:
    """Return why a schema can't follow others in a subject; an empty list if it can.

    Args:
        level: one of `LEVELS`.
        new: the Avro schema to add.
        olds: the subject's versions, the newest last.
    """
    compared = olds if level.endswith("_TRANSITIVE") else olds[-1:]
    reasons: list[str] = []
    for old in compared:
        if level.startswith(("BACKWARD", "FULL")):
            reasons += read_incompatibilities(new, old)
        if level.startswith(("FORWARD", "FULL")):
            reasons += read_incompatibilities(old, new)
    return reasons


def read_incompatibilities(reader: str, writer: str) -> list[str]:
    """Return the reasons why a reader's Avro schema can't read values of a writer's (both as JSON); empty if it can."""
    return list(
        _Resolution().compare(avro_schema(reader, "the reader's schema"), avro_schema(writer, "the writer's schema"))
    )


class _Names:
    """The named types of one schema, which are defined before they are used."""

    def __init__(self) -> None:
        self._types: dict[str, Any] = {}

    def define_type(self, schema: dict[str, Any], space: str) -> tuple[str, str]:
        """Record a definition; return its full name, and the namespace of the names in it."""
        full, space = definition_name(schema, space)
        self._types[full] = (schema, space)
        return full, space

    def find_type(self, name: str, space: str) -> tuple[Any, str]:
        """Return the definition of a named type, and the namespace of the names in it; a primitive type is its own."""
        return (name, space) if name in PRIMITIVE_SIZES else self._types[full_name(name, space)]

    def define_all_types(self, schema: Any, space: str) -> None:
        """Record all named types that a schema defines, before the comparison, which may skip a definition."""
        if isinstance(schema, list):
            for branch in schema:
                self.define_all_types(branch, space)
        elif isinstance(schema, dict):
            kind = schema.get("type")
            if kind in ("record", "error", "enum", "fixed"):
                _, space = self.define_type(schema, space)
                for field in schema.get("fields", ()):
                    self.define_all_types(field.get("type"), space)
            else:
                for part in (kind, schema.get("items"), schema.get("values")):
                    self.define_all_types(part, space)


class _Resolution:
    """One comparison of a reader's and a writer's Avro schema, by the specification's rules of schema resolution."""

    def __init__(self) -> None:
        self._reader, self._writer = _Names(), _Names()

    def compare(self, reader: Any, writer: Any) -> Iterator[str]:
        self._reader.define_all_types(reader, "")
        self._writer.define_all_types(writer, "")
        return self._differences(reader, writer, "", "", "value")

    def _differences(self, reader: Any, writer: Any, space: str, written: str, path: str) -> Iterator[str]:
        reader, space = self._resolved(self._reader, reader, space)
        writer, written = self._resolved(self._writer, writer, written)
        if isinstance(writer, list):
            for branch in writer:
                yield from self._differences(reader, branch, space, written, path)
            return
        if isinstance(reader, list):
            found = [list(self._differences(branch, writer, space, written, path)) for branch in reader]
            if not any(not reasons for reasons in found):
                yield f"{path}: the reader's union has no branch for {_kind(writer)}"
            return
        kind, old = _kind(reader), _kind(writer)
        if kind != old:
            if kind not in _PROMOTED.get(old, ()):
                yield f"{path}: {old} was written, and {kind} can't read it"
        elif kind == "array":
            yield from self._differences(reader["items"], writer["items"], space, written, f"{path}[]")
        elif kind == "map":
            yield from self._differences(reader["values"], writer["values"], space, written, f"{path}{{}}")
        elif kind in ("record", "enum", "fixed"):
            yield from self._named_differences(reader, writer, space, written, path)

    def _resolved(self, names: _Names, schema: Any, space: str) -> tuple[Any, str]:
        while True:
            if isinstance(schema, str):
                found, inner = names.find_type(schema, space)
                if found is schema:
                    return schema, space
                schema, space = found, inner
            elif isinstance(schema, dict) and isinstance(schema["type"], list | dict):
                schema = schema["type"]
            elif isinstance(schema, dict) and schema["type"] in ("record", "error", "enum", "fixed"):
                return schema, definition_name(schema, space)[1]
            elif isinstance(schema, dict) and schema["type"] not in ("array", "map"):
                schema = schema["type"]
            else:
                return schema, space

    def _named_differences(
        self, reader: dict[str, Any], writer: dict[str, Any], space: str, written: str, path: str
    ) -> Iterator[str]:
        last_names = [str(schema["name"]).rpartition(".")[2] for schema in (reader, writer)]
        aliases = [str(alias).rpartition(".")[2] for alias in reader.get("aliases", ())]
        if last_names[0] != last_names[1] and last_names[1] not in aliases:
            yield f"{path}: {last_names[1]} was written, and {last_names[0]} is another name"
        elif reader["type"] == "fixed":
            if reader.get("size") != writer.get("size"):
                yield f"{path}: {writer.get('size')} bytes were written, and {reader.get('size')} are read"
        elif reader["type"] == "enum":
            known = set(reader["symbols"])
            missing = [symbol for symbol in writer["symbols"] if symbol not in known]
            if missing and "default" not in reader:
                yield f"{path}: the symbol {missing[0]} is not known to the reader, which has no default"
        else:
            yield from self._field_differences(reader, writer, space, written, path)

    def _field_differences(
        self, reader: dict[str, Any], writer: dict[str, Any], space: str, written: str, path: str
    ) -> Iterator[str]:
        old_fields = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            names = (field["name"], *field.get("aliases", ()))
            old = next((old_fields[name] for name in names if name in old_fields), None)
            if old is not None:
                yield from self._differences(field["type"], old["type"], space, written, f"{path}.{field['name']}")
            elif "default" not in field:
                yield f"{path}.{field['name']}: it was not written, and has no default"


def _kind(schema: Any) -> str:
    kind = schema if isinstance(schema, str) else str(schema["type"])
    return "record" if kind == "error" else kind


# -- The subjects, in memory and in their file

KINDS = ("AVRO", "JSON", "PROTOBUF")
DEFAULT_LEVEL = "BACKWARD"
"""The compatibility of subjects that have none of their own: Confluent's default."""


class RefusedRequest(Exception):
    """A request that the registry refuses.

    Attributes:
        status: the HTTP status.
        code: Confluent's error code.
    """

    def __init__(self, status: int, code: int, text: str) -> None:
        super().__init__(text)
        self.status, self.code = status, code


@dataclass(frozen=True, slots=True)
class SchemaToAdd:
    """A checked schema from a request to register or compare it.

    Attributes:
        kind: AVRO, JSON or PROTOBUF.
        text: the schema as it was given.
        key: a normal form that equal schemas share: JSON without blanks, Protobuf without comments.
        references: the files that a Protobuf schema imports, or the types that another schema takes from others.
        imports: their names and texts, also of those that they refer to.
    """

    kind: str
    text: str
    key: str
    references: tuple[SchemaReference, ...] = ()
    imports: Imports = ()

    @classmethod
    def from_request(
        cls, body: dict[str, Any], find_version: Callable[[SchemaReference], RegisteredSchema]
    ) -> SchemaToAdd:
        """Parse and check the schema in the body of a request to register or compare it.

        Args:
            body: the request.
            find_version: returns the schema of a reference; raises NotFoundError.

        Raises:
            RefusedRequest: it is invalid, of another kind, or has references that do not exist.
        """
        text, kind = body.get("schema"), body.get("schemaType", "AVRO")
        if not isinstance(text, str) or kind not in KINDS:
            raise _invalid("a request has a schema, and schemaType AVRO, JSON or PROTOBUF")
        if not text.strip():
            raise _invalid("the schema is empty")
        try:
            references = parse_references(body.get("references"), "the schema")
            made = resolve_imports(RegisteredSchema(0, kind, text, references=references), find_version)
            if kind == "PROTOBUF":
                identity = compiled_for_registry(text, made.imports).identity_text()
                key = json.dumps([identity, [asdict(reference) for reference in references]])
                return cls(kind, text, key, references, made.imports)
            if kind == "AVRO":
                avro_writer(inline_avro_references(text, made.imports, "the schema"), 0)
            key = json.dumps(json.loads(text), separators=(",", ":"))
            if references:
                key = json.dumps([key, [asdict(reference) for reference in references]])
            return cls(kind, text, key, references, made.imports)
        except InvalidInputError as error:
            raise _invalid(error.message) from None
        except RetriableError as error:
            raise RefusedRequest(HTTPStatus.INTERNAL_SERVER_ERROR, 50001, error.message) from None
        except (ValueError, RecursionError) as error:
            raise _invalid(f"no JSON: {error}") from None


@lru_cache(maxsize=32)
def compiled_for_registry(text: str, imports: Imports) -> ProtobufSchema:
    """Return a compiled Protobuf schema of the registry, which may lack a message; the last ones are kept."""
    return compile_protobuf(text, imports, "the schema", needs_message=False)


def _invalid(text: str) -> RefusedRequest:
    return RefusedRequest(HTTPStatus.UNPROCESSABLE_ENTITY, 42201, text)


class Subjects:
    """All subjects, their versions and levels of compatibility. Any number of threads may use them.

    A version is deleted in two steps, as in Confluent's registry. After the first one it is only shown to requests that
    ask for deleted ones too, and its number and id stay taken. The second one removes it.
    """

    def __init__(self, file: Path | None) -> None:
        """Read the file; None: subjects are kept in memory only.

        Raises:
            CorruptDataError: a line of the file is damaged.
        """
        self._lock = threading.Lock()
        self._versions: dict[str, list[RegisteredSchema]] = {}
        self._by_id: dict[int, RegisteredSchema] = {}
        self._ids: dict[tuple[str, str], int] = {}
        self._last_id = 0  # of all schemas, also of those that were removed
        self._deleted: set[tuple[str, int]] = set()
        self._levels: dict[str, str] = {}
        self._file = None
        if file is not None:
            for line in _whole_lines(file):
                self._replay(file, line)
            self._file = file.open("ab", buffering=0)
        self._torn_from = -1

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def subject_names(self, *, deleted: bool = False) -> list[str]:
        """Return the subjects, sorted; with `deleted` also those of which all versions are deleted."""
        with self._lock:
            return sorted(subject for subject in self._versions if self._kept(subject, deleted=deleted))

    def version_numbers(self, subject: str, *, deleted: bool = False) -> list[int]:
        """Return a subject's versions; with `deleted` also deleted ones."""
        with self._lock:
            return [schema.version for schema in self._of(subject, deleted=deleted)]

    def version_of_subject(self, subject: str, version: str, *, deleted: bool = False) -> RegisteredSchema:
        """Return the schema that a subject has as this version: a number, `latest` or -1.

        Raises:
            RefusedRequest: there is none, or it is deleted and `deleted` is not set; or the version is invalid.
        """
        number = _version_number(version)
        with self._lock:
            return self._version(subject, number, deleted=deleted)

    def by_id(self, number: int) -> RegisteredSchema:
        """Return the schema with an id."""
        with self._lock:
            found = self._by_id.get(number)
        if found is None:
            raise RefusedRequest(HTTPStatus.NOT_FOUND, 40403, f"Schema {number} not found")
        return found

    def schema_to_add(self, body: dict[str, Any]) -> SchemaToAdd:
        """Return the schema of a request, checked, with the versions that it refers to.

        Raises:
            RefusedRequest: it is invalid.
        """
        return SchemaToAdd.from_request(body, self._referred)

    def _referred(self, reference: SchemaReference) -> RegisteredSchema:
        try:
            return self.version_of_subject(reference.subject, str(reference.version), deleted=True)
        except RefusedRequest as error:
            raise NotFoundError(str(error)) from None

    def referring_ids(self, subject: str, version: str) -> list[int]:
        """Return the ids of all schemas that have a reference to this version of a subject, without deleted ones."""
        found = self.version_of_subject(subject, version)
        with self._lock:
            return sorted(self._referring(subject, found.version))

    def _referring(self, subject: str, version: int) -> set[int]:
        return {
            schema.id
            for name in self._versions
            for schema in self._kept(name)
            if any((other.subject, other.version) == (subject, version) for other in schema.references)
        }

    def find_version(self, subject: str, schema: SchemaToAdd, *, deleted: bool = False) -> RegisteredSchema:
        """Return the version under which a subject already has this schema; with `deleted` also a deleted one.

        Raises:
            RefusedRequest: the subject does not have the schema.
        """
        with self._lock:
            number = self._ids.get((schema.kind, schema.key))
            for known in self._of(subject, deleted=deleted):
                if known.id == number:
                    return known
        raise RefusedRequest(HTTPStatus.NOT_FOUND, 40403, "Schema not found")

    def add_version(self, subject: str, schema: SchemaToAdd) -> int:
        """Add a schema to a subject, unless it is there; return its id.

        Raises:
            RefusedRequest: it is not compatible.
        """
        with self._lock:
            olds = self._kept(subject)
            number = self._ids.get((schema.kind, schema.key), self._last_id + 1)
            if all(old.id != number for old in olds):
                reasons = self._reasons(subject, schema, olds)
                if reasons:
                    text = f"Schema being registered is incompatible with an earlier schema: {'; '.join(reasons[:5])}"
                    raise RefusedRequest(HTTPStatus.CONFLICT, 409, text)
                line: dict[str, Any] = {
                    "subject": subject, "id": number, "kind": schema.kind, "schema": schema.text
                }  # fmt: skip
                if schema.references:
                    line["references"] = [asdict(reference) for reference in schema.references]
                self._write_line(line)
                self._keep_version(number, subject, schema)
            return number

    def delete_subject(self, subject: str, *, permanent: bool) -> list[int]:
        """Delete all versions of a subject, and its level; return their numbers.

        Args:
            subject: the subject.
            permanent: remove the versions, which must be deleted already.

        Raises:
            RefusedRequest: it does not exist; it is deleted already, or not yet; or other schemas refer to it.
        """
        with self._lock:
            every, left = self._of(subject, deleted=True), self._kept(subject)
            if permanent and left:
                text = f"Subject '{subject}' was not deleted first before being permanently deleted"
                raise RefusedRequest(HTTPStatus.NOT_FOUND, 40405, text)
            if not permanent and not left:
                text = f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently"
                raise RefusedRequest(HTTPStatus.NOT_FOUND, 40404, text)
            numbers = [schema.version for schema in (every if permanent else left)]
            self._delete(subject, numbers, permanent=permanent)
            return numbers

    def delete_version(self, subject: str, version: str, *, permanent: bool) -> int:
        """Delete one version of a subject, with the last one also the subject's level; return its number.

        Args:
            subject: the subject.
            version: a number, `latest` or -1.
            permanent: remove the version, which must be deleted already.

        Raises:
            RefusedRequest: it does not exist; it is deleted already, or not yet; or other schemas refer to it.
        """
        number = _version_number(version)
        with self._lock:
            is_latest_left = number is None and not permanent and bool(self._kept(subject))
            found = self._version(subject, number, deleted=not is_latest_left)
            name, is_deleted = f"Subject '{subject}' Version {found.version}", self._is_deleted(found)
            if permanent and not is_deleted:
                text = f"{name} was not deleted first before being permanently deleted"
                raise RefusedRequest(HTTPStatus.NOT_FOUND, 40407, text)
            if not permanent and is_deleted:
                text = f"{name} was soft deleted. Set permanent=true to delete permanently"
                raise RefusedRequest(HTTPStatus.NOT_FOUND, 40406, text)
            self._delete(subject, [found.version], permanent=permanent)
            return found.version

    def incompatibility_reasons(self, subject: str, schema: SchemaToAdd, version: str | None) -> list[str]:
        """Return why a schema can't be added; with a version, it is compared with that one alone."""
        if version is None:
            with self._lock:
                return self._reasons(subject, schema, self._of(subject))
        old = self.version_of_subject(subject, version)
        with self._lock:
            return self._reasons(subject, schema, [old])

    def compatibility_level_of(self, subject: str | None) -> str:
        """Return the compatibility level of a subject; None: the default level."""
        with self._lock:
            return self._levels.get(subject or "", self._levels.get("", DEFAULT_LEVEL))

    def set_level(self, subject: str | None, level: object) -> str:
        """Set the compatibility level of a subject; None: the default level."""
        if level not in LEVELS:
            raise RefusedRequest(
                HTTPStatus.UNPROCESSABLE_ENTITY, 42203, f"Invalid compatibility level; there are {', '.join(LEVELS)}"
            )
        with self._lock:
            self._write_line({"level": level, "subject": subject or ""})
            self._levels[subject or ""] = str(level)
        return str(level)

    def _is_deleted(self, schema: RegisteredSchema) -> bool:
        return (schema.subject, schema.version) in self._deleted

    def _kept(self, subject: str, *, deleted: bool = False) -> list[RegisteredSchema]:
        """Return a subject's versions, none if there is no such subject; with `deleted` also deleted ones."""
        found = self._versions.get(subject, [])
        return [schema for schema in found if deleted or not self._is_deleted(schema)]

    def _of(self, subject: str, *, deleted: bool = False) -> list[RegisteredSchema]:
        found = self._kept(subject, deleted=deleted)
        if not found:
            raise RefusedRequest(HTTPStatus.NOT_FOUND, 40401, f"Subject '{subject}' not found.")
        return found

    def _version(self, subject: str, number: int | None, *, deleted: bool) -> RegisteredSchema:
        """Return a version of a subject; None: the latest."""
        found = self._of(subject, deleted=deleted)
        if number is None:
            return found[-1]
        for schema in found:
            if schema.version == number:
                return schema
        raise RefusedRequest(HTTPStatus.NOT_FOUND, 40402, f"Version {number} not found.")

    def _delete(self, subject: str, numbers: Sequence[int], *, permanent: bool) -> None:
        """Delete versions in the file, then here.

        Raises:
            RefusedRequest: a schema that is not deleted refers to one of them.
        """
        for number in numbers:
            if self._referring(subject, number):
                text = "One or more references exist to the schema"
                text = f"{text} {{magic=1,keytype=SCHEMA,subject={subject},version={number}}}."
                raise RefusedRequest(HTTPStatus.UNPROCESSABLE_ENTITY, 42206, text)
        self._write_line({"subject": subject, "deleted": numbers, "permanent": permanent})
        self._apply_deletion(subject, numbers, permanent=permanent)

    def _apply_deletion(self, subject: str, numbers: Sequence[int], *, permanent: bool) -> None:
        places = {(subject, number) for number in numbers}
        if not permanent:
            self._deleted |= places
            if not self._kept(subject):
                self._levels.pop(subject, None)
            return
        self._deleted -= places
        self._versions[subject] = [schema for schema in self._versions[subject] if schema.version not in numbers]
        if not self._versions[subject]:
            del self._versions[subject]
        used = {schema.id for versions in self._versions.values() for schema in versions}
        self._by_id = {number: schema for number, schema in self._by_id.items() if number in used}
        self._ids = {key: number for key, number in self._ids.items() if number in used}

    def _reasons(self, subject: str, schema: SchemaToAdd, olds: list[RegisteredSchema]) -> list[str]:
        level = self._levels.get(subject, self._levels.get("", DEFAULT_LEVEL))
        if level == "NONE" or not olds:
            return []
        if any(old.kind != schema.kind for old in olds):
            return [f"the subject's schemas are of the kind {olds[-1].kind}"]
        if schema.kind == "AVRO":
            new = inline_avro_references(schema.text, schema.imports, "the schema")
            return avro_incompatibilities(
                level, new, [inline_avro_references(old.text, old.imports, "the schema") for old in olds]
            )
        if schema.kind == "PROTOBUF":
            from kohort.schema_registry.protobuf_changes import protobuf_incompatibilities

            versions = [compiled_for_registry(old.text, old.imports) for old in olds]
            return protobuf_incompatibilities(level, compiled_for_registry(schema.text, schema.imports), versions)
        if self._ids.get((schema.kind, schema.key)) in {old.id for old in olds}:
            return []
        return [f"the embedded registry compares Avro and Protobuf only: set the compatibility of {subject} to NONE"]

    def _keep_version(self, number: int, subject: str, schema: SchemaToAdd) -> None:
        versions = self._versions.setdefault(subject, [])
        version = versions[-1].version + 1 if versions else 1
        made = RegisteredSchema(number, schema.kind, schema.text, subject, version, schema.references, schema.imports)
        versions.append(made)
        self._by_id.setdefault(number, made)
        self._ids[schema.kind, schema.key] = number
        self._last_id = max(self._last_id, number)

    def _write_line(self, line: dict[str, Any]) -> None:
        """Append a line durably.

        Raises:
            RetriableError: the disk is full or fails. Nothing of the line remains: its id goes to another schema.
        """
        if self._file is None:
            return
        rest = memoryview(json.dumps(line).encode() + b"\n")
        try:
            if self._torn_from >= 0:
                self._file.truncate(self._torn_from)
            self._torn_from = os.fstat(self._file.fileno()).st_size
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            if self._torn_from >= 0:
                with contextlib.suppress(OSError):  # or before the next line
                    self._file.truncate(self._torn_from)
            raise RetriableError(f"{self._file.name} can't be written: {error.strerror}; nothing was changed") from None
        self._torn_from = -1

    def _replay(self, file: Path, line: bytes) -> None:
        try:
            found = json.loads(line)
            subject = found["subject"]
            if "level" in found:
                self._levels[subject] = found["level"]
                return
            if "deleted" in found:
                self._apply_deletion(subject, found["deleted"], permanent=found["permanent"])
                return
            body = {"schema": found["schema"], "schemaType": found["kind"], "references": found.get("references")}
            self._keep_version(found["id"], subject, self.schema_to_add(body))
        except (ValueError, KeyError, TypeError, RefusedRequest) as error:
            raise CorruptDataError(f"{file}: a line is damaged: {error}") from None


def _version_number(version: str) -> int | None:
    """Return the number that a request names a version by; None: the latest.

    Raises:
        RefusedRequest: it is no version's number.
    """
    if version in ("latest", "-1"):
        return None
    if not (re.fullmatch(r"\d{1,10}", version) and 0 < int(version) < 2**31):
        text = f"The specified version {version[:80]!r} is not a valid version id: 1 to 2^31-1, or latest"
        raise RefusedRequest(HTTPStatus.UNPROCESSABLE_ENTITY, 42202, text)
    return int(version)


def _whole_lines(file: Path) -> Iterator[bytes]:
    """Remove an incomplete last line, left by a crash, from the file; then yield all lines."""
    if not file.exists():
        return
    data = file.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with file.open("r+b") as opened:
            opened.truncate(whole)
    yield from data[:whole].splitlines()
