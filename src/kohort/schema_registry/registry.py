"""The client of a schema registry: schemas by id and subject over HTTP, within limits.

Only addresses that the application names are asked. Source: Confluent's reference of the Schema Registry API, v1.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json  # not msgspec, without which clients start
import socket
import ssl
import threading
import time
import urllib.parse
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from kohort.errors import (
    CorruptDataError,
    InvalidInputError,
    KafkaError,
    NotAuthorizedError,
    NotFoundError,
    RetriableError,
    TimedOutError,
)
from kohort.schema_registry.prefix import PREFIX_BYTES, VALUE_BYTES, schema_id
from kohort.settings.arguments import checked, checked_call
from kohort.settings.validation import shown_url

SCHEMA_BYTES_MAX = 1024 * 1024
"""Size of the largest schema: Confluent's registry keeps it in one record, for which Kafka's limit is 1 MiB."""
ANSWER_BYTES_MAX = 4 * SCHEMA_BYTES_MAX
"""Size of the largest answer: quotes of a schema in JSON are escaped, and other fields stand beside it."""
CACHE_BYTES_MAX = 32 * 1024 * 1024
"""Bytes of schema texts that a client keeps: damaged values can name any id. A parsed schema takes about ten times as
much; the one that was used least recently goes first.
"""
UNKNOWN_KEPT_S = 10.0
"""How long an id without a schema is not asked for again: values of one topic mostly repeat it."""
FAILURE_KEPT_S = 1.0
"""How long the failure of a look-up stands, so that not every record of a batch waits for a registry that is away."""
UNKNOWN_MAX = 10_000
"""Most ids without a schema, or whose look-up failed, that are remembered."""
_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
_KINDS = ("AVRO", "JSON", "PROTOBUF")


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema in a registry.

    Attributes:
        id: the id, which stands before each value.
        kind: AVRO, JSON or PROTOBUF.
        text: the schema.
        subject: the subject; "" if the schema was asked for by its id.
        version: the version in the subject; 0 without one.
    """

    id: int
    kind: str
    text: str
    subject: str = ""
    version: int = 0


@dataclass(slots=True)
class _KnownSchema:
    """The schema of an id, or why there is none.

    Attributes:
        schema: the schema; None: it can't be used.
        refused: the reason why values of it can't be read; "" if they can.
        read: the function that reads values; None: not made yet.
    """

    schema: RegisteredSchema | None
    refused: str = ""
    read: Callable[[bytes], Any] | None = None


@dataclass(frozen=True, slots=True)
class _Address:
    """One address of a registry."""

    url: str
    secure: bool
    host: str
    port: int
    path: str
    login: str | None


def _address_of(url: str) -> _Address:
    """Split an address.

    Raises:
        InvalidInputError: it is no http: or https: URL.
    """
    try:
        parts = urllib.parse.urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise InvalidInputError(f"the schema registry's URL {shown_url(url)}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise InvalidInputError(
            f"a schema registry's URL is like http://registry:8081 or https://user:password@registry:8081, not "
            f"{shown_url(url)}"
        )
    login = None
    if parts.username is not None:
        user, password = (urllib.parse.unquote(part or "") for part in (parts.username, parts.password))
        login = base64.b64encode(f"{user}:{password}".encode()).decode()
    secure = parts.scheme == "https"
    return _Address(
        shown_url(url.strip()), secure, parts.hostname, port or (443 if secure else 80), parts.path.rstrip("/"), login
    )


@checked
class SchemaRegistry:
    """A client of a schema registry: Confluent's, or another with the same REST interface.

        registry = SchemaRegistry("http://127.0.0.1:8081")
        send = registry.serializer("payments-value", '{"type": "record", "name": "Payment", "fields": […]}')
        with Producer(servers, value_serializer=send) as producer:
            producer.send("payments", {"id": 1, "total": 9.99})
        with Consumer(servers, schema_registry_url="http://127.0.0.1:8081") as consumer: …

    Schemas are kept by id, up to 32 MiB of text, because the schema of an id never changes. Redirects are refused. Any
    number of threads may use one client.
    """

    @checked_call
    def __init__(self, url: str, *, timeout_ms: float = 10_000, ssl_ca_location: str | None = None) -> None:
        """Keep the addresses; nothing is asked yet.

        Args:
            url: the address, or several with commas between, which are tried in turn. A user and password may stand
                before the host.
            timeout_ms: Limit for one answer of one address.
            ssl_ca_location: a PEM file of certificate authorities for https:; None: those of the system.

        Raises:
            InvalidInputError: a URL has another form.
        """
        self._addresses = [_address_of(part) for part in url.split(",")]
        self._timeout_s = max(0.001, timeout_ms / 1000)
        self._authorities = ssl_ca_location
        self._lock = threading.Lock()
        self._schemas: OrderedDict[int, _KnownSchema] = OrderedDict()
        self._bytes = 0
        self._failures: OrderedDict[int, tuple[float, KafkaError]] = OrderedDict()

    def schema(self, number: int) -> RegisteredSchema:
        """Return the schema with an id, from memory if it is known.

        Raises:
            NotFoundError: there is no schema of this id.
            CorruptDataError: the schema is too large, or has references.
            RetriableError: the registry can't be reached, or has a fault; TimedOutError: it is too slow.
        """
        known = self._look_up(number)
        if known.schema is None:
            raise CorruptDataError(known.refused)
        return known.schema

    def latest(self, subject: str) -> RegisteredSchema:
        """Return the newest schema of a subject.

        Raises:
            NotFoundError: there is no such subject.
            RetriableError: the registry can't be reached, or has a fault.
        """
        answer = self._ask("GET", f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/latest")
        return _schema_of(answer, subject, None)

    def register(self, subject: str, schema: str, kind: str = "AVRO") -> int:
        """Add a schema to a subject, unless it is there, and return its id.

        Args:
            subject: the subject: by default a topic's values have `<topic>-value`.
            schema: the schema's text.
            kind: AVRO, JSON or PROTOBUF.

        Raises:
            InvalidInputError: the registry refuses the schema, as one that is not compatible.
            RetriableError: the registry can't be reached, or has a fault.
        """
        if kind not in _KINDS:
            raise InvalidInputError(f"a schema is AVRO, JSON or PROTOBUF, not {kind}")
        if len(schema.encode()) > SCHEMA_BYTES_MAX:
            raise InvalidInputError(f"a schema of more than {SCHEMA_BYTES_MAX} bytes can't be registered")
        body = {"schema": schema} if kind == "AVRO" else {"schema": schema, "schemaType": kind}
        answer = self._ask("POST", f"/subjects/{urllib.parse.quote(subject, safe='')}/versions", body)
        return _id_of(answer)

    def deserialize(self, data: bytes) -> Any:
        """Return the value behind a schema's id, as `value_deserializer` of a consumer.

        Raises:
            CorruptDataError: the id is missing or unknown, the schema can't be used, or the bytes are not of it.
            RetriableError: the registry can't be reached, or has a fault.
        """
        number = schema_id(data)
        try:
            known = self._look_up(number)
        except NotFoundError as error:
            raise CorruptDataError(error.message) from None
        if known.read is None and not known.refused:
            assert known.schema is not None
            try:
                known.read = _reader_of(known.schema)
            except InvalidInputError as error:
                known.refused = error.message
        if known.read is None:
            raise CorruptDataError(known.refused)
        return known.read(data)

    def prepare(self, values: Iterable[bytes]) -> None:
        """Look the schemas of values up, so that `deserialize` need not wait; failures stand for a second.

        Args:
            values: values, or their first five bytes.
        """
        numbers = {int.from_bytes(value[1:PREFIX_BYTES], "big") for value in values if value[:1] == b"\0"}
        for number in numbers:
            with contextlib.suppress(KafkaError):  # `deserialize` raises it for the record
                self._look_up(number)

    def serializer(self, subject: str, schema: str | None = None) -> Callable[[Any], bytes]:
        """Return a function that makes bytes of values, as `value_serializer` of a producer.

        Args:
            subject: the subject, as `<topic>-value`.
            schema: an Avro schema, which is registered if it is new; None: the subject's newest.

        Raises:
            InvalidInputError: the schema is invalid, or the registry refuses it.
            NotFoundError: there is no such subject, and no schema was given.
            RetriableError: the registry can't be reached, or has a fault.
        """
        from kohort.schema_registry.avro_values import avro_writer

        if schema is None:
            found = self.latest(subject)
            if found.kind != "AVRO":
                raise InvalidInputError(f"the newest schema of {subject} is of the kind {found.kind}, and not AVRO")
            return avro_writer(found.text, found.id)
        avro_writer(schema, 0)  # an invalid schema is not registered
        return avro_writer(schema, self.register(subject, schema))

    # Schemas by id.

    def _look_up(self, number: int) -> _KnownSchema:
        with self._lock:
            found = self._schemas.get(number)
            if found is not None:
                self._schemas.move_to_end(number)
                return found
            until_s, failure = self._failures.get(number, (0.0, None))
            if failure is not None and time.monotonic() < until_s:
                raise type(failure)(failure.message, failure.code)
        try:
            answer = self._ask("GET", f"/schemas/ids/{number}")
        except NotFoundError:
            raise self._failed(number, NotFoundError(self._no_schema(number)), UNKNOWN_KEPT_S) from None
        except KafkaError as error:
            raise self._failed(number, error, FAILURE_KEPT_S) from None
        try:
            made = _KnownSchema(_schema_of(answer, "", number))
        except InvalidInputError as error:
            made = _KnownSchema(None, error.message)
        with self._lock:
            if number not in self._schemas:
                self._schemas[number] = made
                self._bytes += _bytes_of(made)
                while self._bytes > CACHE_BYTES_MAX:
                    self._bytes -= _bytes_of(self._schemas.popitem(last=False)[1])
            return self._schemas[number]

    def _failed(self, number: int, error: KafkaError, kept_s: float) -> KafkaError:
        """Remember the failure of a look-up, and return it."""
        with self._lock:
            self._failures[number] = (time.monotonic() + kept_s, error)
            while len(self._failures) > UNKNOWN_MAX:
                self._failures.popitem(last=False)
        return error

    def _no_schema(self, number: int) -> str:
        return f"the registry {self._addresses[0].url} has no schema {number}"

    # One request.

    def _ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Ask the addresses in turn until one answers.

        Raises:
            KafkaError: the answer is a refusal, or no address answers; then the error of the last one.
        """
        for address in self._addresses[:-1]:
            try:
                return self._ask_one(address, method, path, body)
            except RetriableError:
                continue
        return self._ask_one(self._addresses[-1], method, path, body)

    def _ask_one(self, address: _Address, method: str, path: str, body: Any) -> dict[str, Any]:
        try:
            status, data = self._request(address, method, path, body)
        except TimeoutError:
            raise TimedOutError(
                f"the schema registry {address.url} did not answer within {self._timeout_s:g} s"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise RetriableError(f"the schema registry {address.url} can't be reached: {reason}") from None
        if len(data) > ANSWER_BYTES_MAX:
            raise InvalidInputError(
                f"the schema registry {address.url} answered with more than {ANSWER_BYTES_MAX} bytes"
            )
        if status != HTTPStatus.OK:
            raise _refusal(address, status, data)
        answer = _object(data)
        if answer is None:
            raise InvalidInputError(f"{address.url} answered {path} with something other than JSON: is it a registry?")
        return answer

    def _request(self, address: _Address, method: str, path: str, body: Any) -> tuple[int, bytes]:
        """Return status and body of an answer; a body that is too large is cut after the limit.

        Raises:
            TimeoutError: the answer is not complete in time, be it slow or trickling.
        """
        made: http.client.HTTPConnection
        if address.secure:
            context = ssl.create_default_context(cafile=self._authorities)
            made = http.client.HTTPSConnection(address.host, address.port, timeout=self._timeout_s, context=context)
        else:
            made = http.client.HTTPConnection(address.host, address.port, timeout=self._timeout_s)
        headers = {"Accept": f"{_MEDIA_TYPE}, application/json", "Connection": "close"}
        if address.login is not None:
            headers["Authorization"] = f"Basic {address.login}"
        if body is not None:
            headers["Content-Type"] = _MEDIA_TYPE
        until = time.monotonic() + self._timeout_s
        try:
            made.connect()
            timer = _cut_off(made.sock, max(0.0, until - time.monotonic()))
            try:
                made.request(method, address.path + path, None if body is None else json.dumps(body), headers)
                with made.getresponse() as answer:
                    data = answer.read(ANSWER_BYTES_MAX + 1)
                    if answer.length and len(data) <= ANSWER_BYTES_MAX:
                        raise ConnectionResetError("the answer ended early")
                    status = answer.status
            except (OSError, http.client.HTTPException):
                if time.monotonic() >= until:
                    raise TimeoutError from None
                raise
            finally:
                timer.cancel()
            if time.monotonic() >= until:
                raise TimeoutError
            return status, data
        finally:
            made.close()


def _cut_off(connected: socket.socket, after_s: float) -> threading.Timer:
    """Start a timer that ends a connection: a socket's own timeout begins anew with each byte."""

    def shut_down() -> None:
        with contextlib.suppress(OSError):  # it has ended by itself
            connected.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(after_s, shut_down)
    timer.daemon = True
    timer.start()
    return timer


def _refusal(address: _Address, status: int, data: bytes) -> KafkaError:
    """Return the error of an answer other than 200."""
    answer = _object(data) or {}
    said = str(answer.get("message", data[:200].decode(errors="replace")))[:500]
    text = f"the schema registry {address.url} answered {status}: {said}"
    if 300 <= status < 400:
        return InvalidInputError(f"{text}; redirects are not followed: give the address that it leads to")
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return NotAuthorizedError(text)
    if status == HTTPStatus.NOT_FOUND:
        # Without a code of the registry's own, some other server answered, which knows nothing of ids.
        known = isinstance(answer.get("error_code"), int)
        return NotFoundError(text) if known else InvalidInputError(f"{text}: is it a schema registry?")
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
        return RetriableError(text)
    return InvalidInputError(text)


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _bytes_of(known: _KnownSchema) -> int:
    """Return the bytes that count towards `CACHE_BYTES_MAX`; 200 are those of an entry without its text."""
    return 200 + (0 if known.schema is None else len(known.schema.text))


def _id_of(answer: dict[str, Any]) -> int:
    number = answer.get("id")
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**31:
        raise InvalidInputError("the schema registry answered without a schema's id")
    return number


def _schema_of(answer: dict[str, Any], subject: str, number: int | None) -> RegisteredSchema:
    """Return the schema of an answer.

    Raises:
        InvalidInputError: it has no schema, or one that can't be used: too large, or with references.
    """
    text, kind, version = answer.get("schema"), answer.get("schemaType", "AVRO"), answer.get("version", 0)
    if not isinstance(text, str) or not isinstance(kind, str) or not isinstance(version, int):
        raise InvalidInputError("the schema registry answered without a schema")
    name = f"the schema {number}" if number is not None else f"the newest schema of {subject}"
    if len(text.encode(errors="replace")) > SCHEMA_BYTES_MAX:
        raise InvalidInputError(f"{name} has more than {SCHEMA_BYTES_MAX} bytes")
    if answer.get("references"):
        raise InvalidInputError(f"{name} has references to other schemas, which are not resolved: register it whole")
    return RegisteredSchema(_id_of(answer) if number is None else number, kind, text, subject, version)


def _reader_of(schema: RegisteredSchema) -> Callable[[bytes], Any]:
    """Return a function that reads values with their prefix.

    Raises:
        InvalidInputError: the schema can't be used.
    """
    if schema.kind == "AVRO":
        from kohort.schema_registry.avro_values import avro_reader

        return avro_reader(schema.text, f"the schema {schema.id}")
    if schema.kind == "JSON":
        return _json_value
    raise InvalidInputError(f"the schema {schema.id} is of the kind {schema.kind}, which can't be read")


def _json_value(data: bytes) -> Any:
    """Return the JSON behind a prefix, which is not compared with its schema."""
    if len(data) > VALUE_BYTES:
        raise CorruptDataError(f"{len(data)} bytes are more than the {VALUE_BYTES} that are read")
    try:
        return json.loads(data[PREFIX_BYTES:])
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(f"no JSON: {error}") from None
