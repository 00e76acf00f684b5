"""The client of a schema registry: schemas by id and subject over HTTP, within limits.

Requests go only to addresses that the application names. Source: Confluent's reference of the Schema Registry API, v1.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import http.client
import json  # not msgspec, without which clients start
import re
import socket
import ssl
import threading
import time
import urllib.parse
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

from kohort.errors import (
    CorruptDataError,
    ErrorCode,
    InvalidInputError,
    KafkaError,
    NotAuthorizedError,
    NotFoundError,
    RetriableError,
    TimedOutError,
)
from kohort.schema_registry.avro_references import inline_avro_references
from kohort.schema_registry.prefix import PREFIX_BYTES, VALUE_BYTES, UnusableSchemaError, schema_id
from kohort.schema_registry.protobuf_files import is_built_in
from kohort.schema_registry.protobuf_schemas import IMPORTS_MAX, compile_protobuf
from kohort.settings.arguments import check_call_arguments, checks_arguments

SCHEMA_BYTES_MAX = 1024 * 1024
"""Size of the largest schema: Confluent's registry keeps it in one record, for which Kafka's limit is 1 MiB."""
ANSWER_BYTES_MAX = 4 * SCHEMA_BYTES_MAX
"""Size of the largest answer: quotes of a schema in JSON are escaped, and other fields stand beside it."""
CACHE_BYTES_MAX = 32 * 1024 * 1024
"""Bytes of schema texts that a client keeps: damaged values can name any id. A parsed schema takes about ten times as
much; the one that was used least recently goes first.
"""
PARSED_SHARE = 10
"""Bytes in memory that count as one byte of text."""
UNKNOWN_KEPT_S = 10.0
"""How long an id without a schema is not asked for again: values of one topic mostly repeat it."""
FAILURE_KEPT_S = 1.0
"""How long the failure of a look-up stands, so that not every record of a batch waits for a registry that is away."""
FAILURES_BYTES_MAX = 1024 * 1024
"""Bytes of failed look-ups that a client keeps, by id: about 3,000. The oldest go first."""
_FAILURE_TEXT_MAX = 600
UNKNOWN_PER_S = 100
"""Most ids without a schema that are asked for in a second: each is a connection of its own.

Damaged or hostile records can name any id, each another. A look-up takes about a millisecond of CPU here and there, so
100 are a tenth of a core. A topic has a few schemas, and ids that the registry knows do not count.
"""
_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
_BETWEEN_URLS = re.compile(r",(?=\s*https?:)", re.IGNORECASE)  # a password may have commas
_KINDS = ("AVRO", "JSON", "PROTOBUF")


@dataclass(frozen=True, slots=True)
class SchemaReference:
    """A file that a Protobuf schema imports, or a type that an Avro schema uses: a schema of its own in the registry.

    Attributes:
        name: the file's name, as `import` has it, or the type's full name.
        subject: the subject that has it.
        version: its version there.
    """

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema in a registry.

    Attributes:
        id: the id, which stands before each value.
        kind: AVRO, JSON or PROTOBUF.
        text: the schema.
        subject: the subject; "" if the schema was asked for by its id.
        version: the version in the subject; 0 if there is none.
        references: the files that a Protobuf schema imports, or the types that another schema takes from others.
        imports: their names and texts, also of those that they refer to; none of a JSON Schema that was asked for by
            its id.
    """

    id: int
    kind: str
    text: str
    subject: str = ""
    version: int = 0
    references: tuple[SchemaReference, ...] = ()
    imports: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class _KnownSchema:
    """The schema of an id, or the reason why it can't be used.

    Attributes:
        schema: the schema; None if it can't be used.
        refused: the reason why values of it can't be read; "" if they can.
        read: the function that reads values; None: not made yet.
        failure: why it could not be made on this machine, which says nothing about the schema.
        reader_bytes: bytes of text that would take as much memory as the function.
    """

    schema: RegisteredSchema | None
    refused: str = ""
    read: Callable[[bytes], Any] | None = None
    failure: _FailedLookup | None = None
    reader_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _FailedLookup:
    """The failure of a look-up. The traceback is left out, because it would keep the answer's bytes in memory.

    Attributes:
        until_s: the time until which the failure is remembered, on the monotonic clock.
        kind: the class of the error.
        text: the message.
        code: the error's code.
    """

    until_s: float
    kind: type[KafkaError]
    text: str
    code: ErrorCode

    @classmethod
    def from_error(cls, error: KafkaError, kept_s: float) -> _FailedLookup:
        return cls(time.monotonic() + kept_s, type(error), error.message[:_FAILURE_TEXT_MAX], error.code)

    @property
    def counted_bytes(self) -> int:
        """The bytes that count towards `FAILURES_BYTES_MAX`; 300 are those of an entry without its text."""
        return 300 + len(self.text)

    def to_error(self) -> KafkaError:
        return self.kind(self.text, self.code)


@dataclass(frozen=True, slots=True)
class _Address:
    """One address of a registry: scheme, host, port, path and credentials."""

    url: str
    secure: bool
    host: str
    port: int
    path: str
    login: str | None = dataclasses.field(repr=False)


def _address_of(url: str) -> _Address:
    """Split an address.

    Raises:
        InvalidInputError: it is no http: or https: URL.
    """
    try:
        parts = urllib.parse.urlsplit(url.strip())
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise _url_refused() from None
    rest = parts.path + parts.query + parts.fragment
    if parts.scheme not in ("http", "https") or not host or "," in host or "@" in rest or parts.query or parts.fragment:
        raise _url_refused()
    login = None
    if parts.username is not None:
        user, password = (urllib.parse.unquote(part or "") for part in (parts.username, parts.password))
        login = base64.b64encode(f"{user}:{password}".encode()).decode()
    secure, path = parts.scheme == "https", parts.path.rstrip("/")
    place = f"[{host}]" if ":" in host else host
    shown = f"{parts.scheme}://{place}{f':{port}' if port else ''}{path}"
    return _Address(shown, secure, host, port or (443 if secure else 80), path, login)


def _url_refused() -> InvalidInputError:
    """Return the error for a URL that can't be split, which is not shown: any part of it may be a password."""
    return InvalidInputError(
        "a schema registry's URL is like http://registry:8081 or https://user:password@registry:8081; the given one "
        "has another form, and is not shown because it may hold a password. In a password write %2F, %3F, %23, %40 for "
        "/ ? # @"
    )


@checks_arguments
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

    @check_call_arguments
    def __init__(
        self,
        url: str,
        *,
        timeout_ms: float = 10_000,
        ssl_ca_location: str | None = None,
        max_value_bytes: int = VALUE_BYTES,
    ) -> None:
        """Keep the addresses; no request is sent yet.

        Args:
            url: the address, or several with commas between, which are tried in turn. A user and password may stand
                before the host.
            timeout_ms: Limit for one answer of one address.
            ssl_ca_location: a PEM file of certificate authorities for https:; None: those of the system.
            max_value_bytes: size of the largest value that is read, 4 MiB by default; as Python objects a value may
                take two hundred times its size. For consumers give `value_deserializer=SchemaRegistry(…).deserialize`.

        Raises:
            InvalidInputError: a URL has another form.
        """
        self._addresses = [_address_of(part) for part in _BETWEEN_URLS.split(url)]
        self._timeout_s = max(0.001, timeout_ms / 1000)
        self._max_value_bytes = max_value_bytes
        self._authorities = ssl_ca_location
        self._lock = threading.Lock()
        self._schemas: OrderedDict[int, _KnownSchema] = OrderedDict()
        self._bytes = 0
        self._failures: OrderedDict[int, _FailedLookup] = OrderedDict()
        self._failures_bytes = 0
        self._away: _FailedLookup | None = None  # the registry can't be reached, or has a fault
        self._budget = float(UNKNOWN_PER_S)
        self._budget_at_s = time.monotonic()

    def schema(self, number: int) -> RegisteredSchema:
        """Return the schema with an id, from memory if it is known. Look-ups of unknown ids wait beyond 100 a second.

        Raises:
            NotFoundError: there is no schema of this id.
            CorruptDataError: the schema is too large, or has references that do not resolve.
            RetriableError: the registry can't be reached, or has a fault; TimedOutError: it is too slow.
        """
        known = self._look_up(number, waits=True)
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
        return self._resolve_imports(_schema_of(answer, subject, None))

    def register(
        self, subject: str, schema: str, kind: str = "AVRO", *, references: Sequence[SchemaReference] = ()
    ) -> int:
        """Add a schema to a subject, unless it is there, and return its id.

        Args:
            subject: the subject: by default a topic's values have `<topic>-value`.
            schema: the schema's text.
            kind: AVRO, JSON or PROTOBUF.
            references: the files that a Protobuf schema imports; those of Protobuf itself need none. Or the types that
                an Avro or JSON Schema takes from other schemas.

        Raises:
            InvalidInputError: the registry refuses the schema, as one that is not compatible.
            RetriableError: the registry can't be reached, or has a fault.
        """
        if kind not in _KINDS:
            raise InvalidInputError(f"a schema is AVRO, JSON or PROTOBUF, not {kind}")
        if len(schema.encode()) > SCHEMA_BYTES_MAX:
            raise InvalidInputError(f"a schema of more than {SCHEMA_BYTES_MAX} bytes can't be registered")
        body: dict[str, Any] = {"schema": schema} if kind == "AVRO" else {"schema": schema, "schemaType": kind}
        if references:
            body["references"] = [dataclasses.asdict(reference) for reference in references]
        answer = self._ask("POST", f"/subjects/{urllib.parse.quote(subject, safe='')}/versions", body)
        return _id_of(answer)

    def deserialize(self, data: bytes) -> Any:
        """Return the value after a schema id, as `value_deserializer` of a consumer.

        Raises:
            CorruptDataError: the id is missing or unknown, the schema can't be used, or the bytes are not of it.
            InvalidInputError: a library that reads such values is not installed.
            RetriableError: the registry can't be reached, or has a fault; or this machine can't process the schema now.
        """
        number = schema_id(data)
        try:
            known = self._look_up(number)
        except NotFoundError as error:
            raise CorruptDataError(error.message) from None
        return self._read_function(known)(data)

    def deserialize_prepared(self, data: bytes) -> Any:
        """Return the value after a schema id that `prepare` has looked up. No request is sent to the registry.

        Raises:
            CorruptDataError: as in `deserialize`.
            RetriableError: the look-up failed, or the schema is not in memory any more.
        """
        try:
            known = self._prepared(schema_id(data))
        except NotFoundError as error:
            raise CorruptDataError(error.message) from None
        if known.read is None and not known.refused:
            if known.failure is not None:
                raise known.failure.to_error()
            raise RetriableError("the schema was not prepared: read again")
        return self._read_function(known)(data)

    def prepare(self, values: Iterable[bytes]) -> None:
        """Look the schemas of values up, so that `deserialize` need not wait; a failure is remembered for a second.

        Args:
            values: values, or their first five bytes.
        """
        for prefix in {value[:PREFIX_BYTES] for value in values}:
            with contextlib.suppress(KafkaError):  # `deserialize` raises it for the record
                known = self._look_up(schema_id(prefix))
                self._read_function(known)

    def _read_function(self, known: _KnownSchema) -> Callable[[bytes], Any]:
        """Return the function that reads values of a schema, which is made at the first time.

        Raises:
            CorruptDataError: the schema can't be used.
            KafkaError: this machine failed, and no schema is bad because of it.
        """
        if known.read is None and not known.refused:
            assert known.schema is not None
            if known.failure is not None and time.monotonic() < known.failure.until_s:
                raise known.failure.to_error()
            try:
                read, reader_bytes = _reader_of(known.schema, self._max_value_bytes)
            except UnusableSchemaError as error:
                known.refused = error.message
            except KafkaError as error:
                kept_s = FAILURE_KEPT_S if isinstance(error, RetriableError) else 0.0
                known.failure = _FailedLookup.from_error(error, kept_s)
                raise
            else:
                self._keep_reader(known, read, reader_bytes)
        if known.read is None:
            raise CorruptDataError(known.refused)
        return known.read

    def serializer(
        self,
        subject: str,
        schema: str | None = None,
        *,
        kind: str = "AVRO",
        message: str | None = None,
        references: Sequence[SchemaReference] = (),
    ) -> Callable[[Any], bytes]:
        """Return a function that encodes values as bytes, for `value_serializer` of a producer.

        Args:
            subject: the subject, as `<topic>-value`.
            schema: a schema, which is registered if it is new; None: the subject's newest, of whatever kind.
            kind: the kind of `schema`: AVRO, JSON or PROTOBUF.
            message: the message of a Protobuf schema that values are; None: the file's first.
            references: the files that a Protobuf schema imports, or the types that another schema takes from others.

        Raises:
            InvalidInputError: the schema is invalid, or the registry refuses it.
            NotFoundError: there is no such subject, and no schema was given.
            RetriableError: the registry can't be reached, or has a fault.
        """
        if schema is None:
            found = self.latest(subject)
        else:
            found = self._resolve_imports(RegisteredSchema(0, kind, schema, references=tuple(references)))
        if found.kind == "PROTOBUF":
            from kohort.schema_registry.protobuf_values import protobuf_writer

            made = compile_protobuf(found.text, found.imports, _name_of(found))
            protobuf_writer(made, 0, message)  # an invalid schema is not registered
            number = found.id if schema is None else self.register(subject, schema, kind, references=references)
            return protobuf_writer(made, number, message)
        if found.kind not in ("AVRO", "JSON") or message is not None:
            raise InvalidInputError(
                f"{_name_of(found)} is of the kind {found.kind}: AVRO, JSON and PROTOBUF are written; PROTOBUF alone "
                "has messages"
            )
        writer_of: Callable[[int], Callable[[Any], bytes]]
        if found.kind == "AVRO":
            from kohort.schema_registry.avro_values import avro_writer

            writer_of = partial(avro_writer, inline_avro_references(found.text, found.imports, _name_of(found)))
        else:
            from kohort.schema_registry.json_values import json_writer

            writer_of = partial(json_writer, found.text, imports=found.imports)
        writer_of(0)  # an invalid schema is not registered
        number = found.id if schema is None else self.register(subject, found.text, kind, references=references)
        return writer_of(number)

    # Schemas by id.

    def _look_up(self, number: int, *, waits: bool = False) -> _KnownSchema:
        """Look up the schema of an id in memory or at the registry.

        Args:
            number: the id.
            waits: whether to wait when the budget of unknown ids is spent.

        Raises:
            KafkaError: the registry has no such schema, or fails, or the budget is spent.
        """
        with self._lock:
            if (known := self._remembered(number, time.monotonic())) is not None:
                return known
        while (wait_s := self._until_budget()) > 0:
            if not waits:
                raise RetriableError(
                    f"more than {UNKNOWN_PER_S} unknown ids of schemas in a second, so the schema {number} is not "
                    "asked for: read the record again later"
                )
            time.sleep(wait_s)
        try:
            made = self._known_of(number, self._ask("GET", f"/schemas/ids/{number}"))
        except KafkaError as error:
            failure = self._failed(number, error)
        else:
            return self._keep_schema(number, made)
        raise failure.to_error()

    def _known_of(self, number: int, answer: dict[str, Any]) -> _KnownSchema:
        """Parse an answer, and look up what the schema refers to, except JSON; if it can't be used, return why.

        Raises:
            KafkaError: the registry fails.
        """
        try:
            schema = _schema_of(answer, "", number)
            return _KnownSchema(schema if schema.kind == "JSON" else self._resolve_imports(schema))
        except UnusableSchemaError as error:
            return _KnownSchema(None, error.message)

    def _resolve_imports(self, schema: RegisteredSchema) -> RegisteredSchema:
        """Return a schema with the files that it imports.

        Raises:
            UnusableSchemaError: the registry does not have one, or there are too many, or two of one name.
            KafkaError: the registry fails.
        """
        return resolve_imports(schema, self._version)

    def _version(self, reference: SchemaReference) -> RegisteredSchema:
        subject = urllib.parse.quote(reference.subject, safe="")
        answer = self._ask("GET", f"/subjects/{subject}/versions/{reference.version}?deleted=true")
        return _schema_of(answer, reference.subject, None)

    def _prepared(self, number: int) -> _KnownSchema:
        """Return the schema of an id from memory, without a request; `prepare` must have looked it up.

        Raises:
            KafkaError: the look-up failed, or nothing has looked the id up.
        """
        with self._lock:
            known = self._remembered(number, 0.0)
        if known is None:
            raise RetriableError(f"the schema {number} was not looked up, or is not in memory any more: read again")
        return known

    def _remembered(self, number: int, now_s: float) -> _KnownSchema | None:
        """Return the schema of an id from memory; None if it must be requested. The caller holds the lock.

        Raises:
            KafkaError: the look-up failed, and the failure is remembered until after `now_s`.
        """
        found = self._schemas.get(number)
        if found is not None:
            self._schemas.move_to_end(number)
            return found
        for failure in (self._failures.get(number), self._away):
            if failure is not None and now_s < failure.until_s:
                raise failure.to_error()
        return None

    def _keep_schema(self, number: int, made: _KnownSchema) -> _KnownSchema:
        with self._lock:
            self._away = None
            if number not in self._schemas:
                self._schemas[number] = made
                self._bytes += _bytes_of(made)
                self._forget_schemas()
            return self._schemas.get(number, made)

    def _keep_reader(self, known: _KnownSchema, read: Callable[[bytes], Any], reader_bytes: int) -> None:
        with self._lock:
            if known.read is None:
                known.read, known.failure, known.reader_bytes = read, None, reader_bytes
                if known.schema is not None and self._schemas.get(known.schema.id) is known:
                    self._bytes += reader_bytes
                    self._forget_schemas()

    def _forget_schemas(self) -> None:
        while self._bytes > CACHE_BYTES_MAX:
            self._bytes -= _bytes_of(self._schemas.popitem(last=False)[1])

    def _failed(self, number: int, error: KafkaError) -> _FailedLookup:
        """Remember the failure of an id's look-up, and return it; a retriable failure counts for all ids."""
        unknown = isinstance(error, NotFoundError)
        if unknown:
            error = NotFoundError(self._no_schema(number))
        made = _FailedLookup.from_error(error, UNKNOWN_KEPT_S if unknown else FAILURE_KEPT_S)
        with self._lock:
            if isinstance(error, RetriableError):
                self._away = made
                return made
            self._budget -= 1
            self._forget_failure(number)
            now_s = time.monotonic()
            while self._failures:
                oldest, failure = next(iter(self._failures.items()))
                if now_s < failure.until_s and self._failures_bytes + made.counted_bytes <= FAILURES_BYTES_MAX:
                    break
                self._forget_failure(oldest)
            self._failures[number] = made
            self._failures_bytes += made.counted_bytes
        return made

    def _forget_failure(self, number: int) -> None:
        failure = self._failures.pop(number, None)
        if failure is not None:
            self._failures_bytes -= failure.counted_bytes

    def _until_budget(self) -> float:
        """Refill the rate limit for look-ups of unknown ids; return the seconds to wait before one, or 0."""
        with self._lock:
            now_s = time.monotonic()
            self._budget = min(UNKNOWN_PER_S, self._budget + (now_s - self._budget_at_s) * UNKNOWN_PER_S)
            self._budget_at_s = now_s
            return 0.0 if self._budget >= 1 else max(0.001, (1 - self._budget) / UNKNOWN_PER_S)

    def _no_schema(self, number: int) -> str:
        return f"the registry {self._addresses[0].url} has no schema {number}"

    # One request.

    def _ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Send a request to the registry's addresses in turn, until one answers.

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
        except (OSError, http.client.HTTPException, UnicodeError) as error:  # UnicodeError: a host of no valid form
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
            TimeoutError: the answer is not complete in time, even if its bytes still arrive one by one.
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
    """Start a timer that closes a connection after `after_s`, because a socket timeout restarts with each byte."""

    def shut_down() -> None:
        with contextlib.suppress(OSError):  # it has ended by itself
            connected.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(after_s, shut_down)
    timer.daemon = True
    timer.start()
    return timer


def _refusal(address: _Address, status: int, data: bytes) -> KafkaError:
    """Return the exception for a registry's answer with another HTTP status than 200."""
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
    if status == HTTPStatus.UNPROCESSABLE_ENTITY and isinstance(answer.get("error_code"), int):
        return UnusableSchemaError(text)  # of what was asked for: a schema that is invalid, or an invalid version
    return InvalidInputError(text)


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _bytes_of(known: _KnownSchema) -> int:
    """Return the bytes that count towards `CACHE_BYTES_MAX`; 200 are those of an entry without its text."""
    if known.schema is None:
        return 200
    return 200 + known.reader_bytes + len(known.schema.text) + sum(len(text) for _, text in known.schema.imports)


def _id_of(answer: dict[str, Any]) -> int:
    number = answer.get("id")
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**31:
        raise InvalidInputError("the schema registry answered without a schema's id")
    return number


def _schema_of(answer: dict[str, Any], subject: str, number: int | None) -> RegisteredSchema:
    """Parse the schema in a registry's answer.

    Raises:
        UnusableSchemaError: the answer has no schema, or one that is too large.
    """
    text, kind, version = answer.get("schema"), answer.get("schemaType", "AVRO"), answer.get("version", 0)
    if not isinstance(text, str) or not isinstance(kind, str) or not isinstance(version, int):
        raise UnusableSchemaError("the schema registry answered without a schema")
    name = f"the schema {number}" if number is not None else f"the newest schema of {subject}"
    if len(text.encode(errors="replace")) > SCHEMA_BYTES_MAX:
        raise UnusableSchemaError(f"{name} has more than {SCHEMA_BYTES_MAX} bytes")
    references = parse_references(answer.get("references"), name)
    return RegisteredSchema(_id_of(answer) if number is None else number, kind, text, subject, version, references)


def parse_references(answer: Any, name: str) -> tuple[SchemaReference, ...]:
    """Return the references of an answer or a request.

    Raises:
        UnusableSchemaError: they have another form.
    """
    found = answer or []
    try:
        made = tuple(SchemaReference(item["name"], item["subject"], item["version"]) for item in found)
    except (TypeError, KeyError):
        raise UnusableSchemaError(f"{name} has malformed references") from None
    if len(made) > IMPORTS_MAX:
        raise UnusableSchemaError(f"{name} refers to more than {IMPORTS_MAX} files")
    for reference in made:
        kinds = (type(reference.name), type(reference.subject), type(reference.version))
        if kinds != (str, str, int):
            raise UnusableSchemaError(f"{name} has malformed references")
    return made


def resolve_imports(
    schema: RegisteredSchema, find_version: Callable[[SchemaReference], RegisteredSchema]
) -> RegisteredSchema:
    """Return a schema with the files that it imports, and those that they import, each looked up once.

    Args:
        schema: the schema.
        find_version: returns the schema of a reference; raises NotFoundError.

    Raises:
        UnusableSchemaError: one does not exist, or is of another kind; or there are too many, or two of one name.
    """
    asked: dict[str, SchemaReference] = {}
    texts: dict[str, str] = {}
    left = list(schema.references)
    while left:
        reference = left.pop()
        if schema.kind == "PROTOBUF" and is_built_in(reference.name):
            continue
        if asked.setdefault(reference.name, reference) != reference:
            raise UnusableSchemaError(f"{_name_of(schema)} refers to two schemas as {reference.name[:80]!r}")
        if reference.name in texts:
            continue
        if len(asked) > IMPORTS_MAX:
            raise UnusableSchemaError(f"{_name_of(schema)} refers to more than {IMPORTS_MAX} files")
        where = f"version {reference.version} of {reference.subject[:80]}"
        try:
            found = find_version(reference)
        except NotFoundError:
            raise UnusableSchemaError(f"{_name_of(schema)} refers to {where}, which does not exist") from None
        except UnusableSchemaError as error:
            raise UnusableSchemaError(f"{_name_of(schema)} refers to {where}: {error.message}") from None
        if found.kind != schema.kind:
            raise UnusableSchemaError(f"{_name_of(schema)} refers to {where}, which is of the kind {found.kind}")
        texts[reference.name] = found.text
        left += found.references
        if sum(map(len, texts.values())) > SCHEMA_BYTES_MAX:
            raise UnusableSchemaError(f"{_name_of(schema)} refers to more than {SCHEMA_BYTES_MAX} bytes")
    return dataclasses.replace(schema, imports=tuple(sorted(texts.items())))


def _name_of(schema: RegisteredSchema) -> str:
    """Return the text that identifies a schema in errors: its id, and its subject if that is known."""
    if schema.id and not schema.subject:
        return f"the schema {schema.id}"
    return f"the schema {schema.id} of {schema.subject}" if schema.subject else "the schema"


def _reader_of(schema: RegisteredSchema, max_bytes: int) -> tuple[Callable[[bytes], Any], int]:
    """Return a function that reads values with their prefix, and the bytes that count for it beside those of the text.

    Raises:
        UnusableSchemaError: the schema can't be used.
        KafkaError: this machine failed, or a library is not installed.
    """
    if schema.kind == "AVRO":
        from kohort.schema_registry.avro_values import avro_reader

        name = f"the schema {schema.id}"
        return avro_reader(inline_avro_references(schema.text, schema.imports, name), name, max_bytes), 0
    if schema.kind == "PROTOBUF":
        from kohort.schema_registry.protobuf_values import protobuf_reader

        made = compile_protobuf(schema.text, schema.imports, f"the schema {schema.id}")
        return protobuf_reader(made, max_bytes), made.counted_bytes // PARSED_SHARE
    if schema.kind == "JSON":
        from kohort.schema_registry.json_values import parse_json_value

        return (lambda data: parse_json_value(data, max_bytes)), 0
    raise UnusableSchemaError(f"the schema {schema.id} is of the kind {schema.kind}, which can't be read")
