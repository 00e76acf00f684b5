"""KEDA's external scaler over gRPC: how many members groups need, for a Horizontal Pod Autoscaler.

A thread reads the groups that were asked for, and decides about each by `scaling`. Requests are answered from the last
decision. While the cluster is away they get UNAVAILABLE, so that the autoscaler keeps the number that it has.

The metric of a group is the number of wanted members, and its target is 1. So the autoscaler wants just that number.
"""

from __future__ import annotations

import asyncio
import logging
import re
import struct
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

import grpc
from grpc import aio

from kohort.errors import ErrorCode, InvalidInputError, KafkaError
from kohort.io.closing import ClosedOnExit
from kohort.io.server_certificates import LoadedCertificates, ServerCertificates
from kohort.lag.cluster_watch import ReadListeners
from kohort.lag.evaluation import LagReport
from kohort.lag.reading import LagReader
from kohort.lag.scaling import (
    ScalingDecision,
    ScalingState,
    ScalingTarget,
    decide_member_count,
    parse_duration_ms,
    unavailable_partitions,
    unknown_lag_reason,
)
from kohort.settings.server_access import refuse_beyond_loopback

log = logging.getLogger("kohort.lag")

SERVICE = "externalscaler.ExternalScaler"
READ_TIMEOUT_MS = 10_000
"""The limit of a read of the cluster."""
FIRST_DECISION_S = 5.0
"""How long the first request for a group waits for its first read."""
STALE_INTERVALS, STALE_MIN_S = 3, 60.0
"""A decision is given for this many intervals, and at least so long, after the read behind it."""
FORGET_S = 900.0
"""A group that nobody asks for is read no more after this time. KEDA asks every 30 s unless told otherwise."""
OBJECTS_MAX = 1_000
"""The most scaled objects, which bounds memory and reads: any client may name groups."""
CALLS_MAX = 2_000
"""The most calls at once, streams included."""
MESSAGE_BYTES_MAX = 65_536
"""The longest request."""
GROUP_CHARACTERS_MAX = 1_000
"""The longest name of a group, which log lines repeat."""
STOP_S = 1.0
"""How long calls may go on when the server ends."""
GROUP_KEY, MAX_LAG_KEY, MIN_KEY, MAX_KEY = "group", "maxLag", "minMembers", "maxMembers"
"""The metadata of a trigger that the scaler reads."""


@dataclass(frozen=True, slots=True)
class ScaledGroup:
    """A group with its scaling target, as the metadata of a KEDA trigger name them."""

    group: str
    target: ScalingTarget

    @classmethod
    def of(cls, scaled: ScaledObject) -> ScaledGroup:
        """Parse the metadata of a KEDA trigger.

        Raises:
            InvalidInputError: An entry is missing or invalid, or the bounds of the number contradict each other.
        """
        metadata = scaled.metadata
        group = metadata.get(GROUP_KEY, "")
        if not group or len(group) > GROUP_CHARACTERS_MAX or not group.isprintable():
            raise InvalidInputError(
                f"the trigger's metadata has no {GROUP_KEY}, or one that can't be printed or is over "
                f"{GROUP_CHARACTERS_MAX} characters long"
            )
        try:
            max_lag_ms = parse_duration_ms(metadata.get(MAX_LAG_KEY, ""))
        except InvalidInputError as error:
            raise InvalidInputError(f"{MAX_LAG_KEY}: {error.message}") from None
        fewest, most = _number(metadata.get(MIN_KEY, ""), MIN_KEY), _number(metadata.get(MAX_KEY, ""), MAX_KEY)
        return cls(group, ScalingTarget(max_lag_ms, 1 if fewest is None else fewest, most))

    @property
    def metric_name(self) -> str:
        """The name of the metric under which KEDA asks for the group's number of members."""
        return "kohort-members-" + re.sub(r"[^a-zA-Z0-9_.-]", "-", self.group)[:200]


def _number(text: str, key: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 6):
        raise InvalidInputError(f"{key}: give a number, not {text[:40]!r}")
    return int(text)


@dataclass(slots=True)
class _Watched:
    """A scaled group with the last decision about its number of members.

    Attributes:
        asked_s: The time of the last request for the group in s, on the monotonic clock.
        decision: The last decision; None before the first read.
        decided_s: The time of that decision in s, on the monotonic clock.
        state: The state that `decide_member_count` needs for the next decision; None before the first.
        error: The reason why the last read led to no decision; empty: it led to one.
    """

    asked_s: float
    decision: ScalingDecision | None = None
    decided_s: float = 0.0
    state: ScalingState | None = None
    error: str = ""


class GroupScaling(ClosedOnExit):
    """A thread that reads the groups for which KEDA has asked, and decides how many members each should have.

    Args:
        reader: Reads the cluster; closed with this.
        interval_s: The time between two reads.
        allowed: The groups that may be asked for; empty: all.

    Attributes:
        listeners: Called after each read, on the thread of the reads.
    """

    def __init__(self, reader: LagReader, interval_s: float, allowed: Collection[str] = ()) -> None:
        self._reader, self._interval_s, self._allowed = reader, interval_s, frozenset(allowed)
        self._lock = threading.Lock()
        self._watched: dict[ScaledGroup, _Watched] = {}
        self.listeners = ReadListeners()
        self._news = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="kohort-scaler", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and the reader; may be called again."""
        self._ended = True
        self._news.set()
        self._reader.close()
        self._thread.join()

    def allows(self, group: str) -> bool:
        """Return whether this scaler may be asked for the group."""
        return not self._allowed or group in self._allowed

    def last_decision(self, wanted: ScaledGroup) -> ScalingDecision | None:
        """Return the last decision about a group, and read the group regularly from now on; None before its first read.

        Raises:
            KafkaError: The cluster or the group can't be read, or there are too many groups.
        """
        now_s = time.monotonic()
        with self._lock:
            watched = self._watched.get(wanted)
            if watched is None:
                if len(self._watched) >= OBJECTS_MAX:
                    raise KafkaError(f"{OBJECTS_MAX} groups are scaled already")
                watched = self._watched[wanted] = _Watched(now_s)
                self._news.set()
            watched.asked_s = now_s
            is_stale = now_s - watched.decided_s > max(STALE_MIN_S, STALE_INTERVALS * self._interval_s)
            if watched.decision is not None and is_stale:
                raise KafkaError(watched.error or "the last decision is too old: reads of the cluster have stopped")
            if watched.error and watched.decision is None:
                raise KafkaError(watched.error)
            return watched.decision

    def _run(self) -> None:
        self._log_unreachable_cluster()
        while True:
            started = time.monotonic()
            self._news.clear()  # before the names are taken: a request after them ends the wait
            if self._ended:
                return  # the event that `close` set may be cleared again
            with self._lock:
                for wanted in [found for found, of in self._watched.items() if started - of.asked_s > FORGET_S]:
                    del self._watched[wanted]
                names = sorted({wanted.group for wanted in self._watched})
            if names and not self._ended:
                self._read_groups(names)
            self._news.wait(None if not names else max(0.0, started + self._interval_s - time.monotonic()))

    def _log_unreachable_cluster(self) -> None:
        """Try to connect when the thread starts, and log a failure; no read would show it before the first call."""
        try:
            self._reader.connect(READ_TIMEOUT_MS)
        except Exception as error:  # the reads that calls ask for may succeed
            if not self._ended:
                text = "[scaler] the cluster can't be read: %s; calls get this error until it can"
                log.warning(text, _text_of(error), exc_info=_unexpected(error))

    def _read_groups(self, names: list[str]) -> None:
        report, failure = None, ""
        try:
            report = self._reader.read(names, timeout_ms=READ_TIMEOUT_MS)
        except Exception as error:  # a bug must not end the thread: the decisions would stand still
            if self._ended:
                return
            failure = f"the cluster can't be read: {_text_of(error)}"
            log.warning(
                "[scaler] no decisions: %s; the number of members of all groups stays as it is",
                failure,
                exc_info=_unexpected(error),
            )
        with self._lock:
            for wanted, watched in self._watched.items():
                if report is None:
                    watched.error = failure
                elif wanted.group in names:
                    _decide_or_log(wanted, watched, report)
        self.listeners.call_all()


def _text_of(error: Exception) -> str:
    return str(error) if isinstance(error, KafkaError) else f"unexpected error {type(error).__name__}: {error}"


def _unexpected(error: Exception) -> Exception | None:
    return None if isinstance(error, KafkaError) else error


def _decide_or_log(wanted: ScaledGroup, watched: _Watched, report: LagReport) -> None:
    """Decide how many members a group needs; log an unexpected error, so that it stops no other group's decision."""
    try:
        _decide(wanted, watched, report)
    except Exception as error:
        watched.error = f"no decision about group {wanted.group}: {_text_of(error)}"
        log.exception("[scaler] unexpected error: %s; its number of members stays as it is", watched.error)


def _decide(wanted: ScaledGroup, watched: _Watched, report: LagReport) -> None:
    """Decide how many members a group should have; log a change of that number.

    A group without a known lag, such as one without committed offsets, keeps its members, and gets at least one. If
    its partitions are unavailable, there is no decision: an outage must not change the number of members.
    """
    before, error = watched.decision, report.errors.get(wanted.group)
    group = report.groups.get(wanted.group)
    if group is not None and group.known_partitions:
        watched.decision, watched.state = decide_member_count(group, report.taken_ms, wanted.target, watched.state)
    elif group is not None and unavailable_partitions(group):
        watched.error = f"the lag of group {wanted.group} is unknown: {unknown_lag_reason(group)}"
        return
    elif group is not None or (error is not None and error.code is ErrorCode.GROUP_ID_NOT_FOUND):
        members = 0 if group is None else len(group.description.members)
        why = "there is no such group yet" if group is None else unknown_lag_reason(group)
        target = wanted.target
        number = max(1, members, target.min_members)
        if target.max_members is not None:
            number = min(number, target.max_members)
        watched.decision = ScalingDecision(wanted.group, members, number, None, f"{why}: at least one member is wanted")
    else:
        watched.error = f"group {wanted.group} can't be read: {error or 'it was left out'}"
        return
    watched.error, watched.decided_s = "", time.monotonic()
    if before is None or before.wanted != watched.decision.wanted:
        found = watched.decision
        log.info(
            "[group %s] %d members are wanted, the group has %d: %s",
            found.group,
            found.wanted,
            found.members,
            found.why,
        )


# -- gRPC

Call = Callable[[bytes, "aio.ServicerContext[bytes, bytes]"], Awaitable[bytes]]


def _credentials(certificates: ServerCertificates) -> grpc.ServerCredentials:
    """Return the gRPC server's TLS credentials; the server reads changed certificate files again at each connection."""

    def grpc_configuration(loaded: LoadedCertificates) -> grpc.ServerCertificateConfiguration:
        pair = (loaded.identity, loaded.identity)
        return grpc.ssl_server_certificate_configuration([pair], loaded.authorities)

    def renewed_configuration() -> grpc.ServerCertificateConfiguration | None:
        found = certificates.reload_if_changed()
        return None if found is None else grpc_configuration(found)

    return grpc.dynamic_ssl_server_credentials(
        grpc_configuration(certificates.loaded), renewed_configuration, certificates.requires_client_certificates
    )


class ScalerServer(ClosedOnExit):
    """The gRPC server that KEDA calls as an external scaler, on a thread of its own until it is closed.

    Args:
        host: The address; without client certificates one of this machine's loopback.
        port: The port; 0 picks a free one.
        scaling: Makes the decisions; not closed with the server.
        tls: The TLS settings of connections; None: plain gRPC.
        is_insecure: Serve everyone, also at an address that other machines can reach.

    Attributes:
        address: HOST:PORT.

    Raises:
        InvalidInputError: Other machines reach the address, and clients need no certificate there.
        KafkaError: The address can't be listened on.
    """

    def __init__(
        self,
        host: str,
        port: int,
        scaling: GroupScaling,
        tls: ServerCertificates | None = None,
        *,
        is_insecure: bool = False,
    ) -> None:
        if not (is_insecure or (tls is not None and tls.requires_client_certificates)):
            refuse_beyond_loopback(host, port, "scaler", "ask about every group", is_encrypted=tls is not None)
        self._scaling = scaling
        self._credentials = None if tls is None else _credentials(tls)
        self._host = f"[{host}]" if ":" in host else host
        self._port = port
        self._started = threading.Event()
        self._failure = ""
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._ending = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="kohort-scaler-grpc", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._failure:
            self._thread.join()
            raise KafkaError(self._failure)

    def close(self) -> None:
        """End the calls and the server; may be called again."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ending.set)
            self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._started.set()
            self._loop.close()

    async def _serve(self) -> None:
        options = [("grpc.max_receive_message_length", MESSAGE_BYTES_MAX), ("grpc.so_reuseport", 0)]
        server = aio.server(options=options, maximum_concurrent_rpcs=CALLS_MAX)
        server.add_generic_rpc_handlers((self._handlers(),))
        try:
            address = f"{self._host}:{self._port}"
            if self._credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, self._credentials)
        except RuntimeError:  # it says no more; grpc has written the cause to standard error
            self._failure = f"can't listen on {self._host}:{self._port}: the port is in use, or not this machine's"
            return
        await server.start()
        self.address = f"{self._host}:{port}"
        self._started.set()
        await self._ending.wait()
        await server.stop(STOP_S)

    def _handlers(self) -> grpc.GenericRpcHandler:
        calls: dict[str, Call] = {
            "IsActive": self._is_active,
            "GetMetricSpec": self._metric_spec,
            "GetMetrics": self._metrics,
        }
        handlers = {name: grpc.unary_unary_rpc_method_handler(call) for name, call in calls.items()}
        handlers["StreamIsActive"] = grpc.unary_stream_rpc_method_handler(self._stream_is_active)
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    async def _scaled(
        self,
        request: bytes,
        context: aio.ServicerContext[bytes, bytes],
        decode: Callable[[bytes], ScaledObject] | None = None,
    ) -> ScaledGroup:
        """Parse a request, and return the group that it names; abort the call if this scaler may not serve it."""
        wanted = await _scaled_group(request, context, decode)
        if not self._scaling.allows(wanted.group):
            text = f"the scaler serves other groups than {wanted.group}: start it with --group {wanted.group}"
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, text)
        return wanted

    async def _is_active(self, request: bytes, context: aio.ServicerContext[bytes, bytes]) -> bytes:
        decision = await self._decided(await self._scaled(request, context), context)
        return encode_active(decision.wanted > 0)

    async def _metric_spec(self, request: bytes, context: aio.ServicerContext[bytes, bytes]) -> bytes:
        return encode_metric_spec((await self._scaled(request, context)).metric_name, 1)

    async def _metrics(self, request: bytes, context: aio.ServicerContext[bytes, bytes]) -> bytes:
        wanted = await self._scaled(request, context, lambda data: decode_metrics_request(data)[0])
        del request  # a call that waits for its first decision keeps the group alone
        decision = await self._decided(wanted, context)
        return encode_metrics(wanted.metric_name, decision.wanted)

    async def _stream_is_active(
        self, request: bytes, context: aio.ServicerContext[bytes, bytes]
    ) -> AsyncIterator[bytes]:
        """Answer KEDA's StreamIsActive: yield whether any member is wanted, at once and after each change of that."""
        wanted = await self._scaled(request, context)
        news, told = asyncio.Event(), None
        listener = self._waker(news)
        self._scaling.listeners.add_listener(listener)
        try:
            while True:
                news.clear()
                try:
                    decision = self._scaling.last_decision(wanted)
                except KafkaError:
                    decision = None  # what was told last stands; the unary calls say why
                if decision is not None and (decision.wanted > 0) != told:
                    told = decision.wanted > 0
                    yield encode_active(told)
                await news.wait()
        finally:
            self._scaling.listeners.remove_listener(listener)

    def _waker(self, news: asyncio.Event) -> Callable[[], None]:
        def wake_stream() -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(news.set)

        return wake_stream

    async def _decided(self, wanted: ScaledGroup, context: aio.ServicerContext[bytes, bytes]) -> ScalingDecision:
        """Return the last decision about a group; wait a moment for the first one. Abort the call if there is none."""
        news = asyncio.Event()
        listener = self._waker(news)
        self._scaling.listeners.add_listener(listener)
        end_s = self._loop.time() + FIRST_DECISION_S
        try:
            while True:
                news.clear()
                decision = self._scaling.last_decision(wanted)
                if decision is not None:
                    return decision
                await asyncio.wait_for(news.wait(), max(0.0, end_s - self._loop.time()))
        except TimeoutError:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the group has not been read yet")
        except KafkaError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        finally:
            self._scaling.listeners.remove_listener(listener)
        raise AssertionError("abort raises")


async def _scaled_group(
    request: bytes,
    context: aio.ServicerContext[bytes, bytes],
    decode: Callable[[bytes], ScaledObject] | None = None,
) -> ScaledGroup:
    try:
        return ScaledGroup.of((decode or decode_scaled_object)(request))
    except InvalidInputError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.message)
    raise AssertionError("abort raises")


# Messages in protobuf's encoding. They are few and flat, so that no generated code and no further package is needed.
# Source: KEDA, externalscaler.proto; Protocol Buffers, "Encoding".

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
VARINT_BYTES_MAX = 10
"""The longest varint: 64 bits."""

Value = int | bytes


@dataclass(frozen=True, slots=True)
class ScaledObject:
    """The object that KEDA scales: its name, its namespace, and the metadata of its trigger."""

    name: str = ""
    namespace: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


def decode_scaled_object(data: bytes) -> ScaledObject:
    """Decode a ScaledObjectRef, KEDA's Protobuf message for a ScaledObject.

    Raises:
        InvalidInputError: The bytes are no such message.
    """
    name, namespace, metadata = "", "", {}
    for number, value in _fields(data):
        if number == 1:
            name = _text(value)
        elif number == 2:
            namespace = _text(value)
        elif number == 3:
            entry = {key: _text(found) for key, found in _fields(_bytes(value))}
            metadata[entry.get(1, "")] = entry.get(2, "")
    return ScaledObject(name, namespace, metadata)


def decode_metrics_request(data: bytes) -> tuple[ScaledObject, str]:
    """Decode a GetMetricsRequest: the object, and the name of the metric.

    Raises:
        InvalidInputError: The bytes are no such message.
    """
    scaled, metric = ScaledObject(), ""
    for number, value in _fields(data):
        if number == 1:
            scaled = decode_scaled_object(_bytes(value))
        elif number == 2:
            metric = _text(value)
    return scaled, metric


def encode_active(is_active: bool) -> bytes:
    """Encode an IsActiveResponse, KEDA's Protobuf message for whether a group needs any member."""
    return b"\x08\x01" if is_active else b""


def encode_metric_spec(name: str, target: int) -> bytes:
    """Encode a GetMetricSpecResponse, KEDA's Protobuf message for a metric's name and its target value."""
    return _delimited(1, _metric(name, target))


def encode_metrics(name: str, value: int) -> bytes:
    """Encode a GetMetricsResponse, KEDA's Protobuf message for a metric's name and its value."""
    return _delimited(1, _metric(name, value))


def _metric(name: str, value: int) -> bytes:
    """Encode a MetricSpec or a MetricValue: both have a name, an integer for older versions of KEDA, and a double."""
    number = b"" if not value else b"\x10" + _varint(value)
    double = b"" if not value else b"\x19" + struct.pack("<d", value)
    return _delimited(1, name.encode()) + number + double


def _delimited(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """Parse a Protobuf message by hand: yield the number and the value of each field."""
    place = 0
    while place < len(data):
        key, place = _read_varint(data, place)
        kind = key & 7
        if kind == _VARINT:
            value, place = _read_varint(data, place)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            size, place = _read_varint(data, place)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise InvalidInputError(f"a field of type {kind}")
        if size > len(data) - place:
            raise InvalidInputError("a field is longer than its message")
        yield key >> 3, data[place : place + size]
        place += size


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for count, byte in enumerate(data[place : place + VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, place + count + 1
    raise InvalidInputError("a number without an end")


def _bytes(value: Value) -> bytes:
    if isinstance(value, int):
        raise InvalidInputError("a number in place of a text or a message")
    return value


def _text(value: Value) -> str:
    try:
        return _bytes(value).decode()
    except UnicodeDecodeError:
        raise InvalidInputError("a text that is not UTF-8") from None
