"""Check, before a command begins, that a cluster can be reached at all."""

from __future__ import annotations

from kohort.client.net.cluster import Cluster
from kohort.errors import KafkaError, RetriableError, TimedOutError

_ASKED_MAX = 3
"""Limit on the cluster's brokers that are tried before the cluster counts as unreachable."""


async def check_reachable(cluster: Cluster, timeout_ms: float) -> None:
    """Check that the cluster can be used: connect to one of the brokers that it names, with retries.

    Raises:
        TimedOutError: No broker could be connected; names addresses and causes.
        KafkaError: A login was refused, or another error that a retry does not cure.
    """
    deadline = cluster.runtime.now_ms + timeout_ms
    failures = 0
    while (left := deadline - cluster.runtime.now_ms) > 0:
        try:
            await cluster.runtime.run_within(_connect_any(cluster, left), left, "connect")
            return
        except RetriableError:
            failures += 1
        wait = cluster.backoff_ms(failures)
        await cluster.runtime.sleep(max(1.0, min(wait, deadline - cluster.runtime.now_ms)))
    reason = cluster.unreachable_text() or f"no answer from {', '.join(map(str, cluster.bootstrap))}"
    raise TimedOutError(f"gave up after {timeout_ms:.0f} ms: {reason}")


async def _connect_any(cluster: Cluster, limit_ms: float) -> None:
    await cluster.request_brokers_once()
    failure: KafkaError | None = None
    tasks = [
        cluster.runtime.spawn(
            cluster.connections.acquire(broker.id, broker.address, "main", limit_ms), f"connect {broker.address}"
        )
        for broker in list(cluster.metadata.brokers.values())[:_ASKED_MAX]
    ]
    for task in tasks:
        task.mark_handled()
    try:
        left = set(tasks)
        while left:
            done = await cluster.runtime.wait_first(*left)
            left = {task for task in left if task is not done}
            if done is not None and done.error is None:
                return
            if done is not None and isinstance(done.error, KafkaError):
                failure = done.error
    finally:
        for task in tasks:
            task.cancel()
    if failure is not None:
        raise failure
