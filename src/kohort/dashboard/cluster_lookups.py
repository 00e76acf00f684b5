"""Requests to the cluster when a page is opened: topics, records, regions and coordinators. Blocking calls.

Answers count for some seconds, for all pages: an open page asks again after every read.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from kohort.client.admin.admin import Admin
from kohort.client.net.metadata import TopicInfo
from kohort.dashboard.record_peek import DECODED_BYTES_MAX, REGISTRY_MS, PeekRequest, peek
from kohort.errors import InvalidInputError, KafkaError, NotFoundError, RetriableError
from kohort.ids import TopicPartition
from kohort.schema_registry.registry import SchemaRegistry
from kohort.settings.config import did_you_mean

ANSWER_KEPT_S = 4.0
"""How long an answer of the cluster counts. Failures count as long, so that a cluster that is away is left in peace."""
ANSWERS_KEPT = 200
"""The most answers that are kept; then the oldest goes."""
LOOKUP_MS = 5_000
"""The limit of a call, unless another one is given."""
PARTITIONS_SHOWN = 1_000
"""The most partitions on a topic's page."""
PEEKS_MAX = 2
"""The most looks at records at once: each takes up to 32 MiB."""
LOOKUPS_AT_ONCE = 40
"""The most look-ups that the cluster gets at once, after a time without any; each may open connections and log in."""
LOOKUPS_PER_S = 5.0
"""The most look-ups per second in the long run. Answers from memory do not count."""

View = dict[str, Any]


class BusyError(RetriableError):
    """The error that the dashboard gets too much to do: requests to the cluster, changes, or failed logins."""


class LookupBudget:
    """A token bucket that limits requests to the cluster: `LOOKUPS_AT_ONCE` at first, then `LOOKUPS_PER_S`."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._left, self._at_s = float(LOOKUPS_AT_ONCE), now_s()

    def spend(self) -> None:
        """Take one request from the budget, without waiting.

        Raises:
            BusyError: The budget is used up for now.
        """
        with self._lock:
            now_s = self._now_s()
            self._left = min(LOOKUPS_AT_ONCE, self._left + (now_s - self._at_s) * LOOKUPS_PER_S)
            self._at_s = now_s
            if self._left < 1:
                raise BusyError("the dashboard is asked for too much of the cluster at once: try again")
            self._left -= 1


class AnswerCache:
    """A cache of answers from the cluster by name, each valid for `ANSWER_KEPT_S`.

    Of several threads that ask for one answer, one makes it, which takes a request from the budget.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic, budget: LookupBudget | None = None) -> None:
        self._now_s, self._budget = now_s, LookupBudget(now_s) if budget is None else budget
        self._lock = threading.Lock()
        self._making: dict[str, threading.Lock] = {}
        self._kept: OrderedDict[str, tuple[float, View | KafkaError]] = OrderedDict()

    def cached_answer(self, name: str, make: Callable[[], View]) -> View:
        """Return the cached answer of this name, or call `make` and cache what it returns or raises.

        Raises:
            BusyError: The budget of requests is used up for now.
            KafkaError: `make` failed, now or less than `ANSWER_KEPT_S` ago.
        """
        with self._lock:
            making = self._making.setdefault(name, threading.Lock())
        try:
            with making:
                found = self._found(name, make)
        finally:
            with self._lock:
                if name not in self._kept:  # it was refused, or failed in a way that is not kept
                    self._making.pop(name, None)
        if isinstance(found, KafkaError):
            raise found
        return found

    def _found(self, name: str, make: Callable[[], View]) -> View | KafkaError:
        with self._lock:
            at_s, found = self._kept.get(name, (float("-inf"), None))
        if found is not None and self._now_s() - at_s < ANSWER_KEPT_S:
            return found
        self._budget.spend()
        try:
            found = make()
        except KafkaError as error:
            found = error
        with self._lock:
            self._kept[name] = (self._now_s(), found)
            self._kept.move_to_end(name)
            while len(self._kept) > ANSWERS_KEPT:
                self._making.pop(self._kept.popitem(last=False)[0], None)
        return found

    def cached_names(self) -> set[str]:
        """Return the names of all answers that are cached or being made."""
        with self._lock:
            return {*self._kept, *self._making}


class ClusterLookups:
    """The dashboard's requests to the cluster, for topics, records, coordinators and regions.

    Args:
        servers: HOST:PORT, several with commas between.
        connection: Properties of connections.
        consumer: Properties of the consumers that read records.
        limit_ms: The timeout of a call.
        registry_url: A schema registry for the values of records; None: the consumers' schema.registry.url, if any.

    Raises:
        InvalidInputError: The registry's URL is malformed.
    """

    def __init__(
        self,
        servers: str,
        connection: Mapping[str, Any],
        consumer: Mapping[str, Any],
        limit_ms: int = LOOKUP_MS,
        registry_url: str | None = None,
    ) -> None:
        limit = {"default.api.timeout.ms": limit_ms}
        self._servers = servers
        self._connection, self._consumer = {**connection, **limit}, {**consumer, **limit}
        url = registry_url or self._consumer.pop("schema.registry.url", None)
        self._consumer.pop("schema.registry.url", None)  # a look has the values' bytes
        self._registry = (
            None if url is None else SchemaRegistry(url, timeout_ms=REGISTRY_MS, max_value_bytes=DECODED_BYTES_MAX)
        )
        self._limit_s = limit_ms / 1000
        self._budget = LookupBudget()
        self._kept = AnswerCache(budget=self._budget)
        self._peeks = threading.Semaphore(PEEKS_MAX)

    def admin(self) -> Admin:
        """Return a new administration client, which the caller closes.

        Raises:
            BusyError: The budget of requests is used up for now.
        """
        self._budget.spend()
        return Admin(self._servers, **self._connection)

    def topics(self) -> View:
        """Return all topics of the cluster as JSON values, also Kafka's internal ones."""
        return self._kept.cached_answer("topics", self._topics)

    def _topics(self) -> View:
        with Admin(self._servers, **self._connection) as admin:
            found = admin.list_topics(internal=True)
        return {"topics": [_topic_row(info) for info in found]}

    def topic(self, name: str) -> View:
        """Return a topic's partitions with their offsets as JSON values.

        Raises:
            NotFoundError: There is no such topic.
        """
        return self._kept.cached_answer(f"topic {name}", lambda: self._topic(name))

    def _topic(self, name: str) -> View:
        with Admin(self._servers, **self._connection) as admin:
            info = admin.describe_topics([name]).result(name)
            numbers = sorted(info.partitions)[:PARTITIONS_SHOWN]
            asked = [TopicPartition(name, number) for number in numbers]
            starts = admin.list_offsets(dict.fromkeys(asked, "earliest"))
            ends = admin.list_offsets(dict.fromkeys(asked, "latest"))
        rows = []
        for tp in asked:
            part, error = info.partitions[tp.partition], starts.errors.get(tp) or ends.errors.get(tp)
            rows.append(
                {
                    "partition": tp.partition,
                    "leader": part.leader,
                    "replicas": list(part.replicas),
                    "isr": list(part.isr),
                    "log_start": None if error else starts.values[tp].offset,
                    "log_end": None if error else ends.values[tp].offset,
                    "error": None if error is None else str(error),
                }
            )
        left = len(info.partitions) - len(numbers)
        return {**_topic_row(info), "partition_rows": rows, "partitions_left_out": left}

    def records(self, request: PeekRequest) -> View:
        """Return some records of a topic as JSON values, read by a consumer without a group.

        Raises:
            BusyError: `PEEKS_MAX` such calls are under way.
            NotFoundError: There is no such topic or partition.
        """
        self._budget.spend()
        if not self._peeks.acquire(blocking=False):
            raise BusyError(f"{PEEKS_MAX} looks at records are under way: try again")
        try:
            return peek(self._servers, self._consumer, request, registry=self._registry)
        finally:
            self._peeks.release()

    def coordinators(self) -> View:
        """Return kohort's coordinators over a Kafka cluster with their shards; none where brokers coordinate groups."""
        return self._kept.cached_answer("coordinators", self._coordinators)

    def _coordinators(self) -> View:
        from kohort.client.admin.coordinators import describe_coordinators, shard_row
        from kohort.client.net.thread_driver import ThreadClient
        from kohort.client.settings import ConnectionConfig, client_config

        client = ThreadClient(client_config(ConnectionConfig, self._servers, self._connection))
        try:
            coordinators, shards = client.call(describe_coordinators(client.cluster, self._limit_s * 1000))
        except InvalidInputError:
            return {"coordinators": [], "shards": []}
        finally:
            client.close()
        return {
            "coordinators": [asdict(coordinator) for coordinator in coordinators],
            "shards": [shard_row(shard) for shard in shards],
        }

    def regions(self) -> View:
        """Return all consistent regions of the cluster as JSON values."""
        return self._kept.cached_answer("regions", self._regions)

    def _regions(self) -> View:
        from kohort.region.description import region_list_rows
        from kohort.region.region_log import read_regions

        return {"regions": region_list_rows(read_regions(self._servers, self._connection))}

    def region(self, name: str) -> View:
        """Return a region with its members and sinks as JSON values.

        Raises:
            NotFoundError: There is no such region.
            TimedOutError: Its control plane does not answer.
        """
        known = [row["region"] for row in self.regions()["regions"]]
        if name not in known:
            raise NotFoundError(f"there is no region {name!r}{did_you_mean(name, known)}")
        return self._kept.cached_answer(f"region {name}", lambda: self._region(name))

    def _region(self, name: str) -> View:
        from kohort.region.description import region_view
        from kohort.region.region import Region

        with Region(name, self._servers, serves=False, **self._connection) as region:
            return region_view(region.describe(self._limit_s))


def _topic_row(info: TopicInfo) -> View:
    return {
        "topic": info.name,
        "topic_id": str(info.topic_id),
        "internal": info.internal,
        "partitions": len(info.partitions),
        "replication_factor": max((len(part.replicas) for part in info.partitions.values()), default=0),
        "error": info.error.name if info.error else None,
    }
