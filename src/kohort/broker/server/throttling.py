"""Enforcement of quotas: rates of clients over time, and for how long a client over its quota is not read.

As in Apache Kafka, a rate is the average over `quota.window.num` windows of `quota.window.size.seconds`. A response
over the quota names a throttle time, and the broker then reads nothing from its connection for that time. The throttle
time brings the average back to the quota: (rate - quota) / quota * windows. Source: KIP-13, KIP-55, KIP-124, KIP-219,
KIP-612; `ClientQuotaManager`, `QuotaUtils` and `SampledStat` of Apache Kafka 4.4.

Quotas of a user and a client id, most specific first; the first that has the quota counts alone:

| order | user | client id | shared by |
|---|---|---|---|
| 1 | named | named | the connections of this user and client id |
| 2 | named | default | the same |
| 3 | named | | all connections of the user |
| 4 | default | named | the connections of this user and client id |
| 5 | default | default | the same |
| 6 | default | | all connections of the user |
| 7 | | named | all connections with this client id |
| 8 | | default | the same |

The quota `controller_mutation_rate` is stored and not enforced: changes of topics have a queue of their own
(`broker/slices.py`).
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, TypeAlias

from kohort.broker.config.quotas import CLIENT, IP, USER, Quotas, entity_key
from kohort.broker.server.requests import Request
from kohort.wire.message import Message

PRODUCER, CONSUMER, PERCENTAGE = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
CONNECTIONS: Final = "connection_creation_rate"
PRODUCE = 0
RATES_MAX: Final = 10_000
"""The most rates remembered, which are the most recent."""
THROTTLE_MS_MAX: Final = 2**31 - 1
"""The largest throttle time that a response can name."""

Scope: TypeAlias = tuple[str, str | None, str | None]
"""The clients that share a rate: the quota's name, user and client id; None: all."""


class ClientRate:
    """The average of recorded values over the latest windows."""

    __slots__ = ("_count", "_samples", "_window_ms")

    def __init__(self, count: int, window_ms: int) -> None:
        """Create an empty rate of `count` windows."""
        self._count = count
        self._window_ms = window_ms
        self._samples: deque[list[float]] = deque()  # start and sum of each window

    def record(self, value: float, now_ms: float) -> None:
        """Add a value. A negative value takes back an earlier one."""
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= self._window_ms:
            samples.append([now_ms, 0.0])
        samples[-1][1] += value

    def excess_ms(self, limit: float, now_ms: float) -> float:
        """Return for how long nothing may be added until the rate is down to `limit` per second; 0: it is below."""
        samples = self._samples
        while samples and now_ms - samples[0][0] >= self._count * self._window_ms:
            samples.popleft()
        if not samples:
            return 0.0
        elapsed_ms = now_ms - samples[0][0]
        missing = self._count - 1 - elapsed_ms // self._window_ms
        over_ms = elapsed_ms + max(0.0, missing) * self._window_ms
        rate = sum([sample[1] for sample in samples]) * 1000 / over_ms
        return (rate - limit) / limit * over_ms if rate > limit else 0.0


class QuotaMeter:
    """The use of one request. Its response names the throttle time.

    Attributes:
        throttle_ms: the longest throttle time so far.
    """

    __slots__ = ("_began", "_client_id", "_throttling", "_used_s", "_user", "throttle_ms")

    def __init__(self, throttling: Throttling, user: str, client_id: str) -> None:
        self._throttling = throttling
        self._user, self._client_id = user, client_id
        self._began = time.perf_counter()
        self._used_s: float | None = None
        self.throttle_ms = 0.0

    def count_value(self, quota: str, value: float, most_ms: float = THROTTLE_MS_MAX) -> float:
        """Record a value; return its throttle time, and keep it if it is the longest."""
        found = self._throttling.record(quota, self._user, self._client_id, value)
        self.throttle_ms = max(self.throttle_ms, min(found, most_ms))
        return found

    def fetched(self, size: int) -> bool:
        """Record the bytes of a fetch; return whether they exceed the quota, so that none are sent.

        They then do not count, because the client fetches them again.
        """
        found = self._throttling.record(CONSUMER, self._user, self._client_id, size)
        if found <= 0:
            return False
        self._throttling.record(CONSUMER, self._user, self._client_id, -size)
        self.throttle_ms = max(self.throttle_ms, found)
        return True

    def fetch_bytes_max(self, asked: int) -> int:
        """Return the most bytes of one fetch: those that all windows together allow, so that it can ever be sent."""
        return self._throttling.fetch_bytes_max(self._user, self._client_id, asked)

    def handled(self) -> None:
        """Stop the measurement of a request whose response comes later."""
        if self._used_s is None:
            self._used_s = time.perf_counter() - self._began

    def finish_request(self, request: Request[Message], message: Message | None) -> None:
        """Name the throttle time in the response (None: there is none), and stop reading from the connection."""
        self.handled()
        assert self._used_s is not None
        self.count_value(PERCENTAGE, 100 * self._used_s, self._throttling.window_ms)
        throttle_ms = min(int(self.throttle_ms), THROTTLE_MS_MAX)
        if throttle_ms <= 0:
            return
        if message is not None and hasattr(message, "throttle_time_ms"):
            message.throttle_time_ms = throttle_ms
        request.connection.mute(throttle_ms / 1000)


class Throttling:
    """The rates of clients that have quotas. All methods run on the loop.

    Attributes:
        active: whether any quota exists; otherwise nothing is measured.
        window_ms: the length of a window, which is also the longest throttle time of a request percentage.
    """

    def __init__(
        self, quotas: Quotas, windows: int, window_ms: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin with no rates. `windows` and `window_ms` are number and length of the windows."""
        self._quotas = quotas
        self._windows = windows
        self.window_ms = window_ms
        self._clock = clock
        self._limits: dict[tuple[str, str, str], tuple[Scope, float] | None] = {}
        self._rates: OrderedDict[Scope, ClientRate] = OrderedDict()
        self.active = False
        quotas.listeners.append(self._quotas_changed)
        self._quotas_changed()

    def _quotas_changed(self) -> None:
        self._limits.clear()
        self.active = bool(self._quotas.all())

    def begin(self, request: Request[Message], size: int) -> QuotaMeter:
        """Begin to measure a request of `size` bytes."""
        meter = QuotaMeter(self, request.principal.name, request.client_id or "")
        if request.key == PRODUCE:
            meter.count_value(PRODUCER, size)
        return meter

    def record(self, quota: str, user: str, client_id: str, value: float) -> float:
        """Record a value for a client; return its throttle time in milliseconds, 0 without a quota."""
        found = self._limit(quota, user, client_id)
        return 0.0 if found is None else self._record(*found, value)

    def fetch_bytes_max(self, user: str, client_id: str, asked: int) -> int:
        """Return the most bytes of one fetch of a client."""
        found = self._limit(CONSUMER, user, client_id)
        return asked if found is None else min(asked, int(found[1] * (self._windows - 1) * self.window_ms / 1000))

    def connection_ms(self, host: str) -> float:
        """Count a new connection of an address; return for how long to throttle it, 0: accept it."""
        quotas = self._quotas.all()
        for name in (host, None):
            limit = quotas.get(entity_key((IP, name)), {}).get(CONNECTIONS)
            if limit is None:
                continue
            scope = (CONNECTIONS, host, None)
            found = self._record(scope, limit, 1)
            if found > 0:
                self._record(scope, limit, -1)
            return found
        return 0.0

    def _record(self, scope: Scope, limit: float, value: float) -> float:
        rate = self._rates.get(scope)
        if rate is None:
            rate = self._rates[scope] = ClientRate(self._windows, self.window_ms)
            if len(self._rates) > RATES_MAX:
                self._rates.popitem(last=False)
        else:
            self._rates.move_to_end(scope)
        now_ms = 1000 * self._clock()
        rate.record(value, now_ms)
        return rate.excess_ms(limit, now_ms)

    def _limit(self, quota: str, user: str, client_id: str) -> tuple[Scope, float] | None:
        """Return the scope and limit of the first entity that has the quota; see the module's table."""
        key = (quota, user, client_id)
        if key not in self._limits:
            if len(self._limits) >= RATES_MAX:
                self._limits.clear()
            self._limits[key] = self._find_limit(quota, user, client_id)
        return self._limits[key]

    def _find_limit(self, quota: str, user: str, client_id: str) -> tuple[Scope, float] | None:
        quotas = self._quotas.all()
        for name in (user, None):
            for parts in (((USER, name), (CLIENT, client_id)), ((USER, name), (CLIENT, None)), ((USER, name),)):
                limit = quotas.get(entity_key(*parts), {}).get(quota)
                if limit is not None:
                    return (quota, user, client_id if len(parts) > 1 else None), limit
        for client in (client_id, None):
            limit = quotas.get(entity_key((CLIENT, client)), {}).get(quota)
            if limit is not None:
                return (quota, None, client_id), limit
        return None
