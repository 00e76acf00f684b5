"""A schema registry on loopback for tests: a subset of Confluent's REST interface, kept in a file.

Source: Confluent's reference of the Schema Registry API, v1: paths, fields and error codes.
"""

from __future__ import annotations

import json  # not msgspec: schemas and requests are text of other programs
import re
import threading
import urllib.parse
from collections.abc import Callable
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import ThreadingMixIn
from types import TracebackType
from typing import Any, ClassVar, Self, TypeAlias

from kohort.errors import KafkaError
from kohort.io.connection_gate import PausingServer
from kohort.io.host_header import names_loopback
from kohort.schema_registry.registry import SCHEMA_BYTES_MAX, RegisteredSchema
from kohort.schema_registry.subjects import KINDS, RefusedRequest, Subjects, compiled_for_registry

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
    NONE. Subjects and versions can be deleted. Modes are missing. It has no TLS and no login: every user of the machine
    reaches it. Web pages do not: the server takes JSON alone, and requests to names of this machine.
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

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def _answer(self, method: str) -> None:
        status: int = HTTPStatus.OK
        try:
            self._check_host()
            query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
            body = self._body() if method in ("POST", "PUT") else {}
            if not body and self.headers.get("Content-Length", "0") != "0":
                self.close_connection = True  # a body that is not read would be taken for the next request
            answer = self._routed(method, body, query)
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
        if not names_loopback(self.headers.get("Host", "")):
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

    def _routed(self, method: str, body: dict[str, Any], query: dict[str, str]) -> Any:
        path = urllib.parse.urlsplit(self.path).path.rstrip("/")
        for verb, pattern, respond in _ROUTES:
            found = pattern.fullmatch(path)
            if verb == method and found is not None:
                parts = [urllib.parse.unquote(part) for part in found.groups() if part]
                return respond(self.subjects, parts, body, query)
        raise RefusedRequest(HTTPStatus.NOT_FOUND, 404, "HTTP 404 Not Found")


def _shown(schema: RegisteredSchema, query: dict[str, str]) -> dict[str, Any]:
    """Return a registered schema as the JSON of the REST interface; `schemaType` is left out for Avro."""
    text = schema.text
    if schema.kind == "PROTOBUF" and query.get("format") == "serialized":
        text = compiled_for_registry(text, schema.imports).file_descriptor_text()
    shown = {"subject": schema.subject, "version": schema.version, "id": schema.id, "schema": text}
    if schema.references:
        shown["references"] = [asdict(reference) for reference in schema.references]
    return shown if schema.kind == "AVRO" else {**shown, "schemaType": schema.kind}


def _is_set(query: dict[str, str], name: str) -> bool:
    return query.get(name, "").lower() == "true"


# -- One function for each request: of the subjects, the parts of the path, the body and the query

_Body: TypeAlias = dict[str, Any]
_Query: TypeAlias = dict[str, str]


def _get_schema(subjects: Subjects, parts: list[str], _body: _Body, query: _Query) -> dict[str, Any]:
    shown = _shown(subjects.by_id(int(parts[0])), query)
    return {name: value for name, value in shown.items() if name in ("schema", "schemaType", "references")}


def _get_subjects(subjects: Subjects, _parts: list[str], _body: _Body, query: _Query) -> list[str]:
    return subjects.subject_names(deleted=_is_set(query, "deleted"))


def _get_versions(subjects: Subjects, parts: list[str], _body: _Body, query: _Query) -> list[int]:
    return subjects.version_numbers(parts[0], deleted=_is_set(query, "deleted"))


def _get_version(subjects: Subjects, parts: list[str], _body: _Body, query: _Query) -> dict[str, Any]:
    return _shown(subjects.version_of_subject(*parts, deleted=_is_set(query, "deleted")), query)


def _get_referring(subjects: Subjects, parts: list[str], _body: _Body, _query: _Query) -> list[int]:
    return subjects.referring_ids(*parts)


def _register(subjects: Subjects, parts: list[str], body: _Body, _query: _Query) -> dict[str, int]:
    return {"id": subjects.add_version(parts[0], subjects.schema_to_add(body))}


def _find(subjects: Subjects, parts: list[str], body: _Body, query: _Query) -> dict[str, Any]:
    schema = subjects.schema_to_add(body)
    return _shown(subjects.find_version(parts[0], schema, deleted=_is_set(query, "deleted")), {})


def _delete_subject(subjects: Subjects, parts: list[str], _body: _Body, query: _Query) -> list[int]:
    return subjects.delete_subject(parts[0], permanent=_is_set(query, "permanent"))


def _delete_version(subjects: Subjects, parts: list[str], _body: _Body, query: _Query) -> int:
    return subjects.delete_version(*parts, permanent=_is_set(query, "permanent"))


def _compatible(subjects: Subjects, parts: list[str], body: _Body, _query: _Query) -> dict[str, Any]:
    version = parts[1] if len(parts) > 1 else None
    reasons = subjects.incompatibility_reasons(parts[0], subjects.schema_to_add(body), version)
    return {"is_compatible": not reasons, "messages": reasons}


def _get_level(subjects: Subjects, parts: list[str], _body: _Body, _query: _Query) -> dict[str, str]:
    return {"compatibilityLevel": subjects.compatibility_level_of(parts[0] if parts else None)}


def _set_level(subjects: Subjects, parts: list[str], body: _Body, _query: _Query) -> dict[str, str]:
    return {"compatibility": subjects.set_level(parts[0] if parts else None, body.get("compatibility"))}


_Respond: TypeAlias = Callable[[Subjects, list[str], _Body, _Query], Any]
_SUBJECT, _VERSION = "/subjects/([^/]+)", "/subjects/([^/]+)/versions/([^/]+)"
_HANDLERS: tuple[tuple[str, str, _Respond], ...] = (
    ("GET", "", lambda _subjects, _parts, _body, _query: {}),
    ("GET", "/schemas/types", lambda _subjects, _parts, _body, _query: list(KINDS)),
    ("GET", r"/schemas/ids/(\d{1,10})", _get_schema),
    ("GET", "/subjects", _get_subjects),
    ("POST", _SUBJECT, _find),
    ("DELETE", _SUBJECT, _delete_subject),
    ("GET", f"{_SUBJECT}/versions", _get_versions),
    ("POST", f"{_SUBJECT}/versions", _register),
    ("GET", _VERSION, _get_version),
    ("DELETE", _VERSION, _delete_version),
    ("GET", f"{_VERSION}/referencedby", _get_referring),
    ("POST", "/compatibility/subjects/([^/]+)/versions(?:/([^/]+))?", _compatible),
    ("GET", "/config(?:/([^/]+))?", _get_level),
    ("PUT", "/config(?:/([^/]+))?", _set_level),
)
_ROUTES = [(verb, re.compile(pattern), respond) for verb, pattern, respond in _HANDLERS]
