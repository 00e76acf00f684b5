"""Enforcement of quotas: rates of clients over time, and for how long a client over its quota is not read.

As in Apache Kafka, a rate is the average over `quota.window.num` windows of `quota.window.size.seconds`. A response
over the quota names a throttle time, and the broker then reads nothing from its connection for that time. The throttle
time brings the average back to the quota: (rate - quota) / quota * windows. Source: KIP-13, KIP-55, KIP-124, KIP-219,
KIP-612; `ClientQuotaManager`, `QuotaUtils` and `SampledStat` of Apache Kafka 4.4.

Quotas of a user and a client id, most specific first; only the first that has the quota applies:

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

The quota `controller_mutation_rate` is no average but a bucket of partitions that may be created or deleted. The rate
fills it, up to what `controller.quota.window.num` windows allow. One change may overdraw it. While it is overdrawn,
changes are refused to clients whose version of the request knows the error, and others are delayed. Source: KIP-599;
`TokenBucket` and `StrictControllerMutationQuota`.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, TypeAlias

from kohort.broker.config.quotas import CLIENT, IP, USER, StoredQuotas, quota_entity_key
from kohort.broker.server.connection import Connection
from kohort.broker.server.requests import Request
from kohort.errors import ErrorCode, RetriableError
from kohort.wire.message import Message

PRODUCER, CONSUMER, PERCENTAGE = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
CONNECTIONS: Final = "connection_creation_rate"
MUTATIONS: Final = "controller_mutation_rate"
PRODUCE = 0
RATES_MAX: Final = 10_000
"""The most rates remembered, which are the most recent."""
CLIENT_ID_MAX: Final = 255
"""The characters of a client id by which its rate is remembered. Clients may send ids of 32 KiB."""
THROTTLE_MS_MAX: Final = 2**31 - 1
"""The largest throttle time that a response can name."""

Scope: TypeAlias = tuple[str, str | None, str | None]
"""The clients that share a rate: the quota's name, user and client id; None: all."""


class WindowedRate:
    """The average of recorded values over the latest windows, as Kafka's `Rate` with `SampledStat`."""

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

    def wait_ms_below_limit(self, limit: float, now_ms: float) -> float:
        """Return the time in ms until the rate has fallen to `limit` per second; 0: it is not above."""
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


class MutationBucket:
    """The token bucket of a controller mutation quota: how many partitions may still be created or deleted now.

    A negative number delays the next change.
    """

    __slots__ = ("_burst_s", "_filled_ms", "_left")

    def __init__(self, burst_s: float) -> None:
        """Create a full bucket, whose capacity is the quota's rate times `burst_s`."""
        self._burst_s = burst_s
        self._left: float | None = None
        self._filled_ms = 0.0

    def take_tokens(self, count: int, rate: float, now_ms: float) -> None:
        """Take as many tokens out of the bucket as a request creates or deletes partitions."""
        self._left = self._fill(rate, now_ms) - count

    def refill_wait_ms(self, rate: float, now_ms: float) -> float:
        """Return the time in ms until the bucket is no longer below 0."""
        return max(0.0, -self._fill(rate, now_ms) / rate * 1000)

    def _fill(self, rate: float, now_ms: float) -> float:
        full = rate * self._burst_s
        self._left = full if self._left is None else min(full, self._left + (now_ms - self._filled_ms) / 1000 * rate)
        self._filled_ms = now_ms
        return self._left


class RequestQuotaMeter:
    """The quota usage of one request: bytes, partition changes and processing time. The response has the throttle time.

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

    def charge_quota(self, quota: str, value: float, most_ms: float = THROTTLE_MS_MAX) -> float:
        """Record bytes or time toward one quota, and return the throttle time in ms.

        The response has the longest of these times, each cut to `most_ms`.
        """
        found = self._throttling.record(quota, self._user, self._client_id, value)
        self.throttle_ms = max(self.throttle_ms, min(found, most_ms))
        return found

    def charge_fetch(self, size: int) -> bool:
        """Record the bytes of a fetch; return whether they exceed the quota, so that none are sent.

        They are not charged then, because the client fetches them again.
        """
        found = self._throttling.record(CONSUMER, self._user, self._client_id, size)
        if found <= 0:
            return False
        self._throttling.record(CONSUMER, self._user, self._client_id, -size)
        self.throttle_ms = max(self.throttle_ms, found)
        return True

    def charge_partition_changes(self, count: int, *, knows_error: bool) -> None:
        """Record that partitions will be created or deleted.

        Args:
            count: how many.
            knows_error: whether the client knows the error by its version of the request; if not, it is delayed.

        Raises:
            RetriableError: the client has used up its quota; nothing is recorded, and the response names the time.
        """
        refill_wait_ms, refused = self._throttling.charge_partition_changes(
            self._user, self._client_id, count, knows_error
        )
        self.throttle_ms = max(self.throttle_ms, refill_wait_ms)
        if refused:
            raise RetriableError("The throttling quota has been exceeded.", ErrorCode.THROTTLING_QUOTA_EXCEEDED)

    def fetch_bytes_max(self, asked: int) -> int:
        """Return the most bytes of one fetch: those that all windows together allow, so that it can ever be sent."""
        return self._throttling.fetch_bytes_max(self._user, self._client_id, asked)

    def stop_measuring(self) -> None:
        """Stop the measurement of a request whose response comes later."""
        if self._used_s is None:
            self._used_s = time.perf_counter() - self._began

    def apply_throttle_time(self, request: Request[Message], message: Message | None) -> None:
        """Write the throttle time into the response, and stop reading from the connection for that time.

        `message` is None if there is no response, or one without such a field in this place.
        """
        self.stop_measuring()
        assert self._used_s is not None
        self.charge_quota(PERCENTAGE, 100 * self._used_s, self._throttling.window_ms)
        throttle_ms = min(int(self.throttle_ms), THROTTLE_MS_MAX)
        if throttle_ms <= 0:
            return
        if message is not None and hasattr(message, "throttle_time_ms"):
            message.throttle_time_ms = throttle_ms
        request.connection.pause_reading(throttle_ms / 1000)


class Throttling:
    """The rates of clients that have quotas. All methods run on the loop.

    Attributes:
        active: whether any quota exists; otherwise nothing is measured.
        window_ms: the length of a window, which is also the longest throttle time of a request percentage.
    """

    def __init__(
        self,
        quotas: StoredQuotas,
        windows: int,
        window_ms: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        mutation_burst_s: float = 11,
    ) -> None:
        """Create the measurement of clients against their quotas.

        Args:
            quotas: the quotas.
            windows: the number of windows.
            window_ms: the length of a window.
            clock: seconds.
            mutation_burst_s: the time whose changes of topics may come at once.
        """
        self._quotas = quotas
        self._windows = windows
        self.window_ms = window_ms
        self._clock = clock
        self._mutation_burst_s = mutation_burst_s
        self._buckets: OrderedDict[Scope, MutationBucket] = OrderedDict()
        self._limits: dict[tuple[str, str, str], tuple[Scope, float] | None] = {}
        self._rates: OrderedDict[Scope, WindowedRate] = OrderedDict()
        self.active = False
        quotas.listeners.append(self._quotas_changed)
        self._quotas_changed()

    def _quotas_changed(self) -> None:
        self._limits.clear()
        self.active = bool(self._quotas.all_quotas())

    def begin_measuring(self, request: Request[Message], size: int) -> RequestQuotaMeter:
        """Begin to measure a request of `size` bytes toward the client's quotas."""
        meter = RequestQuotaMeter(self, request.principal.name, request.client_id or "")
        if request.key == PRODUCE:
            meter.charge_quota(PRODUCER, size)
        return meter

    def record(self, quota: str, user: str, client_id: str, value: float) -> float:
        """Record a value for a client; return its throttle time in milliseconds, 0 without a quota."""
        found = self._limit(quota, user, client_id)
        return 0.0 if found is None else self._record(*found, value)

    def charge_push_frame(self, connection: Connection, seconds: float) -> None:
        """Record the time that a push frame took, and stop reading from its connection if that exceeds the quota.

        Push frames have no client id, so quotas of users and the default of client ids apply.
        """
        client = connection.client
        found = self.record(PERCENTAGE, client.principal.name, client.client_id, 100 * seconds)
        if found > 0:
            connection.pause_reading(min(found, self.window_ms) / 1000)

    def charge_partition_changes(self, user: str, client_id: str, count: int, knows_error: bool) -> tuple[float, bool]:
        """Record that partitions will be created or deleted; return the throttle time, and whether it is refused."""
        found = self._limit(MUTATIONS, user, client_id)
        if found is None:
            return 0.0, False
        scope, limit = found
        bucket = self._buckets.get(scope)
        if bucket is None:
            bucket = self._buckets[scope] = MutationBucket(self._mutation_burst_s)
            if len(self._buckets) > RATES_MAX:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(scope)
        now_ms = 1000 * self._clock()
        if knows_error:
            refill_wait_ms = bucket.refill_wait_ms(limit, now_ms)
            if not refill_wait_ms:
                bucket.take_tokens(count, limit, now_ms)
            return refill_wait_ms, refill_wait_ms > 0
        bucket.take_tokens(count, limit, now_ms)
        return bucket.refill_wait_ms(limit, now_ms), False

    def fetch_bytes_max(self, user: str, client_id: str, asked: int) -> int:
        """Return the most bytes of one fetch of a client."""
        found = self._limit(CONSUMER, user, client_id)
        return asked if found is None else min(asked, int(found[1] * (self._windows - 1) * self.window_ms / 1000))

    def connection_throttle_ms(self, host: str) -> float:
        """Count a new connection of an address; return for how long to throttle it, 0: accept it."""
        quotas = self._quotas.all_quotas()
        for name in (host, None):
            limit = quotas.get(quota_entity_key((IP, name)), {}).get(CONNECTIONS)
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
            rate = self._rates[scope] = WindowedRate(self._windows, self.window_ms)
            if len(self._rates) > RATES_MAX:
                self._rates.popitem(last=False)
        else:
            self._rates.move_to_end(scope)
        now_ms = 1000 * self._clock()
        rate.record(value, now_ms)
        return rate.wait_ms_below_limit(limit, now_ms)

    def _limit(self, quota: str, user: str, client_id: str) -> tuple[Scope, float] | None:
        """Return the scope and limit of the first entity that has the quota; see the module's table."""
        if len(client_id) > CLIENT_ID_MAX:
            found = self._find_limit(quota, user, client_id)
            return None if found is None else (_shortened(found[0]), found[1])
        key = (quota, user, client_id)
        if key not in self._limits:
            if len(self._limits) >= RATES_MAX:
                self._limits.clear()
            self._limits[key] = self._find_limit(quota, user, client_id)
        return self._limits[key]

    def _find_limit(self, quota: str, user: str, client_id: str) -> tuple[Scope, float] | None:
        quotas = self._quotas.all_quotas()
        for name in (user, None):
            for parts in (((USER, name), (CLIENT, client_id)), ((USER, name), (CLIENT, None)), ((USER, name),)):
                limit = quotas.get(quota_entity_key(*parts), {}).get(quota)
                if limit is not None:
                    return (quota, user, client_id if len(parts) > 1 else None), limit
        for client in (client_id, None):
            limit = quotas.get(quota_entity_key((CLIENT, client)), {}).get(quota)
            if limit is not None:
                return (quota, None, client_id), limit
        return None


def _shortened(scope: Scope) -> Scope:
    """Return the key by which a rate is counted: the scope with the client id cut to `CLIENT_ID_MAX` characters."""
    quota, user, client_id = scope
    return quota, user, None if client_id is None else client_id[:CLIENT_ID_MAX]
