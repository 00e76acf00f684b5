"""A schema registry on loopback for tests: a subset of Confluent's REST interface, kept in a file.

Three parts follow each other: Avro's schema resolution, the subjects with their file, and the server. Each change is a
line of JSON, which is on the disk before the change is answered. A last line that a crash has cut off is removed at
the next start. Sources: Avro 1.12, Schema Resolution; Confluent's reference of the Schema Registry API, v1: paths,
fields and error codes.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json  # not msgspec: schemas and requests are text of other programs
import os
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import ThreadingMixIn
from types import TracebackType
from typing import Any, ClassVar, Self

from kohort.errors import CorruptDataError, InvalidInputError, KafkaError, NotFoundError, RetriableError
from kohort.io.connection_gate import PausingServer
from kohort.schema_registry.avro_limits import PRIMITIVE_SIZES, avro_schema
from kohort.schema_registry.avro_references import definition_name, full_name, inline_avro_references
from kohort.schema_registry.avro_values import avro_writer
from kohort.schema_registry.protobuf_schemas import Imports, ProtobufSchema, compile_protobuf
from kohort.schema_registry.registry import (
    SCHEMA_BYTES_MAX,
    RegisteredSchema,
    SchemaReference,
    parse_references,
    resolve_imports,
)

# -- Avro's schema resolution

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


# -- Subjects and their file

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
                identity = _compiled(text, made.imports).identity_text()
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
def _compiled(text: str, imports: Imports) -> ProtobufSchema:
    return compile_protobuf(text, imports, "the schema", needs_message=False)


def _invalid(text: str) -> RefusedRequest:
    return RefusedRequest(HTTPStatus.UNPROCESSABLE_ENTITY, 42201, text)


class Subjects:
    """All subjects, their versions and levels of compatibility. Any number of threads may use them."""

    def __init__(self, file: Path | None) -> None:
        """Read the file; None: subjects are kept in memory only.

        Raises:
            CorruptDataError: a line of the file is damaged.
        """
        self._lock = threading.Lock()
        self._versions: dict[str, list[RegisteredSchema]] = {}
        self._by_id: dict[int, RegisteredSchema] = {}
        self._ids: dict[tuple[str, str], int] = {}
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

    def subject_names(self) -> list[str]:
        """Return the subjects, sorted."""
        with self._lock:
            return sorted(self._versions)

    def version_numbers(self, subject: str) -> list[int]:
        """Return a subject's versions."""
        with self._lock:
            return [schema.version for schema in self._of(subject)]

    def version_of_subject(self, subject: str, version: str) -> RegisteredSchema:
        """Return the schema that a subject has as this version: a number, `latest` or -1."""
        is_latest = version in ("latest", "-1")
        if not is_latest and not (re.fullmatch(r"\d{1,10}", version) and 0 < int(version) < 2**31):
            text = f"The specified version {version[:80]!r} is not a valid version id: 1 to 2^31-1, or latest"
            raise RefusedRequest(HTTPStatus.UNPROCESSABLE_ENTITY, 42202, text)
        with self._lock:
            found = self._of(subject)
            if is_latest:
                return found[-1]
            for schema in found:
                if schema.version == int(version):
                    return schema
        raise RefusedRequest(HTTPStatus.NOT_FOUND, 40402, f"Version {version} not found.")

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
            return self.version_of_subject(reference.subject, str(reference.version))
        except RefusedRequest as error:
            raise NotFoundError(str(error)) from None

    def referring_ids(self, subject: str, version: str) -> list[int]:
        """Return the ids of all schemas that have a reference to this version of a subject."""
        found = self.version_of_subject(subject, version)
        with self._lock:
            return sorted(
                schema.id
                for schema in self._by_id.values()
                if any((other.subject, other.version) == (subject, found.version) for other in schema.references)
            )

    def find_version(self, subject: str, schema: SchemaToAdd) -> RegisteredSchema:
        """Return the version under which a subject already has this schema.

        Raises:
            RefusedRequest: the subject does not have the schema.
        """
        with self._lock:
            number = self._ids.get((schema.kind, schema.key))
            for known in self._of(subject):
                if known.id == number:
                    return known
        raise RefusedRequest(HTTPStatus.NOT_FOUND, 40403, "Schema not found")

    def add_version(self, subject: str, schema: SchemaToAdd) -> int:
        """Add a schema to a subject, unless it is there; return its id.

        Raises:
            RefusedRequest: it is not compatible.
        """
        with self._lock:
            olds = self._versions.get(subject, [])
            number = self._ids.get((schema.kind, schema.key), len(self._by_id) + 1)
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

    def _of(self, subject: str) -> list[RegisteredSchema]:
        found = self._versions.get(subject)
        if not found:
            raise RefusedRequest(HTTPStatus.NOT_FOUND, 40401, f"Subject '{subject}' not found.")
        return found

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

            versions = [_compiled(old.text, old.imports) for old in olds]
            return protobuf_incompatibilities(level, _compiled(schema.text, schema.imports), versions)
        if self._ids.get((schema.kind, schema.key)) in {old.id for old in olds}:
            return []
        return [f"the embedded registry compares Avro and Protobuf only: set the compatibility of {subject} to NONE"]

    def _keep_version(self, number: int, subject: str, schema: SchemaToAdd) -> None:
        versions = self._versions.setdefault(subject, [])
        made = RegisteredSchema(
            number, schema.kind, schema.text, subject, len(versions) + 1, schema.references, schema.imports
        )
        versions.append(made)
        self._by_id.setdefault(number, made)
        self._ids[schema.kind, schema.key] = number

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
            body = {"schema": found["schema"], "schemaType": found["kind"], "references": found.get("references")}
            self._keep_version(found["id"], subject, self.schema_to_add(body))
        except (ValueError, KeyError, TypeError, RefusedRequest) as error:
            raise CorruptDataError(f"{file}: a line is damaged: {error}") from None


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


# -- The server

BODY_BYTES_MAX = 2 * SCHEMA_BYTES_MAX
"""Size of the largest request: a schema of the largest size, whose quotes are escaped."""
REQUEST_TIMEOUT_S = 10.0
"""How long a connection may be silent."""
CONNECTIONS_MAX = 64
"""Most connections at once, each with a thread: tests of one machine need a few."""
FILE = "schemas.jsonl"
_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
_JSON_TYPE = re.compile(r"application/([a-z0-9.-]+\+)?json", re.IGNORECASE)


class EmbeddedSchemaRegistry:
    """A schema registry on 127.0.0.1, which tests start and end.

        with EmbeddedSchemaRegistry() as registry:
            consumer = Consumer(broker.bootstrap_servers, schema_registry_url=registry.url)

    It has subjects, versions, schemas by id, compatibility and its configuration. Schemas of Avro and Protobuf are
    compared by every level of compatibility, and may have references. A second version of a JSON Schema needs the level
    NONE. Deletion and modes are missing. It has no TLS and no login: every user of the machine reaches it.
    Web pages do not: the server takes JSON alone, and requests to names of this machine.
    """

    url: str

    def __init__(self, folder: Path | None = None, *, port: int = 0) -> None:
        """Start the registry.

        Args:
            folder: keeps the schemas in the file schemas.jsonl; None: they end with the registry.
            port: 0: any free one.

        Raises:
            CorruptDataError: the file is damaged.
            OSError: the port is in use.
        """
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        self._subjects = Subjects(None if folder is None else folder / FILE)
        try:
            handler = type("_BoundHandler", (_RegistryHandler,), {"subjects": self._subjects})
            self._server = _RegistryServer(("127.0.0.1", port), handler)
        except BaseException:
            self._subjects.close()
            raise
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the registry. Does nothing the second time."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._subjects.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class _RegistryServer(ThreadingMixIn, PausingServer, HTTPServer):
    """The HTTP server, which refuses connections beyond a limit."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = CONNECTIONS_MAX

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._free = threading.BoundedSemaphore(CONNECTIONS_MAX)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own, or close it at once if `CONNECTIONS_MAX` are open."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread can be started; the server closes the connection
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Drop a connection that ended early."""


class _RegistryHandler(BaseHTTPRequestHandler):
    """The handler of one HTTP connection to the registry."""

    subjects: ClassVar[Subjects]
    protocol_version = "HTTP/1.1"
    timeout = REQUEST_TIMEOUT_S
    server_version, sys_version = "kohort", ""

    def log_message(self, *_arguments: Any) -> None:
        """Log nothing."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that can't be read, or of a method that the registry lacks, with JSON instead of a page."""
        status = HTTPStatus.METHOD_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else HTTPStatus(code)
        self.close_connection = True  # a body is not read
        text = f"HTTP {int(status)} {message or status.phrase}"
        self._send_json(status, {"error_code": int(status), "message": text})

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_PUT(self) -> None:
        self._answer("PUT")

    def _answer(self, method: str) -> None:
        status: int = HTTPStatus.OK
        try:
            self._check_host()
            query = urllib.parse.urlsplit(self.path).query
            body = self._body() if method != "GET" else dict(urllib.parse.parse_qsl(query))
            answer = self._routed(method, body)
        except RefusedRequest as error:
            status, answer = error.status, {"error_code": error.code, "message": str(error)}
        except RecursionError:
            status = HTTPStatus.UNPROCESSABLE_ENTITY
            answer = {"error_code": 42201, "message": "the schemas are nested too deep to be compared"}
        except KafkaError as error:
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            answer = {"error_code": 50001, "message": error.message}
        self._send_json(status, answer)

    def _send_json(self, status: int, answer: Any) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", _MEDIA_TYPE)
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _check_host(self) -> None:
        """Refuse other names than this machine's: a page's own name may lead here (DNS rebinding).

        Raises:
            RefusedRequest: the request names another host, or none.
        """
        if not _is_loopback_name(self.headers.get("Host", "")):
            self.close_connection = True  # the body is not read
            raise RefusedRequest(
                HTTPStatus.MISDIRECTED_REQUEST, 421, "the host in the address must be localhost or a loopback address"
            )

    def _body(self) -> dict[str, Any]:
        """Return the request's JSON. Its type must be JSON, which a page in a browser can't send without being asked.

        Raises:
            RefusedRequest: it has another form or type, or is too large.
        """
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch(r"\d{1,10}", length) or int(length) > BODY_BYTES_MAX:
            self.close_connection = True
            raise RefusedRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, 413, f"a request has 0 to {BODY_BYTES_MAX} bytes")
        data = self.rfile.read(int(length))
        if not _JSON_TYPE.fullmatch(self.headers.get("Content-Type", "").partition(";")[0].strip()):
            raise RefusedRequest(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, 415, f"the content's type must be {_MEDIA_TYPE}")
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise RefusedRequest(HTTPStatus.BAD_REQUEST, 400, f"the request is no JSON: {error}") from None
        if not isinstance(found, dict):
            raise RefusedRequest(HTTPStatus.BAD_REQUEST, 400, "the request is no JSON object")
        return found

    def _routed(self, method: str, body: dict[str, Any]) -> Any:
        path = urllib.parse.urlsplit(self.path).path.rstrip("/")
        for verb, pattern, respond in _ROUTES:
            found = pattern.fullmatch(path)
            if verb == method and found is not None:
                return respond(self.subjects, [urllib.parse.unquote(part) for part in found.groups() if part], body)
        raise RefusedRequest(HTTPStatus.NOT_FOUND, 404, "HTTP 404 Not Found")


def _is_loopback_name(host: str) -> bool:
    """Return whether a Host header names this machine: localhost, or a loopback address."""
    try:
        name = urllib.parse.urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _shown(schema: RegisteredSchema, query: dict[str, Any]) -> dict[str, Any]:
    """Return a registered schema as the JSON of the REST interface; `schemaType` is left out for Avro."""
    text = schema.text
    if schema.kind == "PROTOBUF" and query.get("format") == "serialized":
        text = _compiled(text, schema.imports).file_descriptor_text()
    shown = {"subject": schema.subject, "version": schema.version, "id": schema.id, "schema": text}
    if schema.references:
        shown["references"] = [asdict(reference) for reference in schema.references]
    return shown if schema.kind == "AVRO" else {**shown, "schemaType": schema.kind}


def _shown_by_id(schema: RegisteredSchema, query: dict[str, Any]) -> dict[str, Any]:
    shown = _shown(schema, query)
    return {name: value for name, value in shown.items() if name in ("schema", "schemaType", "references")}


def _compatible(subjects: Subjects, parts: list[str], body: dict[str, Any]) -> dict[str, Any]:
    reasons = subjects.incompatibility_reasons(
        parts[0], subjects.schema_to_add(body), parts[1] if len(parts) > 1 else None
    )
    return {"is_compatible": not reasons, "messages": reasons}


_Respond = Callable[[Subjects, list[str], dict[str, Any]], Any]
_ROUTES: list[tuple[str, re.Pattern[str], _Respond]] = [
    (verb, re.compile(pattern), respond)
    for verb, pattern, respond in (
        ("GET", "", lambda _subjects, _parts, _body: {}),
        ("GET", "/schemas/types", lambda _subjects, _parts, _body: list(KINDS)),
        (
            "GET",
            r"/schemas/ids/(\d{1,10})",
            lambda subjects, parts, query: _shown_by_id(subjects.by_id(int(parts[0])), query),
        ),
        ("GET", "/subjects", lambda subjects, _parts, _body: subjects.subject_names()),
        ("GET", "/subjects/([^/]+)/versions", lambda subjects, parts, _body: subjects.version_numbers(parts[0])),
        (
            "GET",
            "/subjects/([^/]+)/versions/([^/]+)",
            lambda subjects, parts, query: _shown(subjects.version_of_subject(*parts), query),
        ),
        (
            "GET",
            "/subjects/([^/]+)/versions/([^/]+)/referencedby",
            lambda subjects, parts, _body: subjects.referring_ids(*parts),
        ),
        (
            "POST",
            "/subjects/([^/]+)/versions",
            lambda subjects, parts, body: {"id": subjects.add_version(parts[0], subjects.schema_to_add(body))},
        ),
        (
            "POST",
            "/subjects/([^/]+)",
            lambda subjects, parts, body: _shown(subjects.find_version(parts[0], subjects.schema_to_add(body)), {}),
        ),
        ("POST", "/compatibility/subjects/([^/]+)/versions(?:/([^/]+))?", _compatible),
        (
            "GET",
            "/config(?:/([^/]+))?",
            lambda subjects, parts, _body: {"compatibilityLevel": subjects.compatibility_level_of(*parts or [None])},
        ),
        (
            "PUT",
            "/config(?:/([^/]+))?",
            lambda subjects, parts, body: {
                "compatibility": subjects.set_level(parts[0] if parts else None, body.get("compatibility"))
            },
        ),
    )
]
