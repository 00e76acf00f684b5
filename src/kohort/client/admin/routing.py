"""Routing of requests to the controller, to leaders and to coordinators, retried where these have moved."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

from kohort.client.admin.values import Results
from kohort.client.net.cluster import GROUP, Cluster, Coordinator
from kohort.client.offsets import AFTER_LOST_ANSWER, MAY_BE_DONE
from kohort.errors import ErrorCode, KafkaError, RetriableError, TimedOutError, error_for
from kohort.ids import TopicPartition

K = TypeVar("K")
V = TypeVar("V")


class HasErrorCode(Protocol):
    """A part of a response with an error code, and possibly a message."""

    error_code: int


class RequestAttempts(Generic[K]):
    """A counter of how often a change was sent for each key, such as a topic or a group.

    A change whose answer was lost is sent again. The second request may be refused because the first one succeeded.
    With the count, such a refusal is distinguished from a refusal of the only request.
    """

    def __init__(self) -> None:
        self._sent: Counter[K] = Counter()

    def sending(self, keys: Iterable[K]) -> Callable[[], None]:
        """Return a callback for `Cluster.send` that counts one attempt for each of these keys."""
        return partial(self._sent.update, list(keys))

    def outcome(self, key: K, found: V | KafkaError) -> V | KafkaError:
        """Return a key's outcome; an error gets a note if an earlier request without an answer may have succeeded."""
        if not isinstance(found, KafkaError):
            return found
        if isinstance(found, RetriableError):
            self._sent[key] -= found.code not in MAY_BE_DONE
            return found
        return self.refusal_error(key, found)

    def refusal_error(self, key: K, error: KafkaError, *, sent: bool = True) -> KafkaError:
        """Return the error of a refused change, with a note if an earlier request for the key may have succeeded.

        Args:
            key: the key, such as a topic or a group.
            error: the broker's refusal.
            sent: True if the refusal answers a request for the change; False if the look-up of the coordinator failed.
        """
        if self._sent[key] < 1 + sent:
            return error
        marked = error_for(error.code, f"{error.message} ({AFTER_LOST_ANSWER})")
        marked.after_lost_answer = True
        return marked


async def retry_each(
    cluster: Cluster,
    attempt: Callable[[], Awaitable[None]],
    keys: Iterable[K],
    done: dict[K, V | KafkaError],
    what: str,
    timeout_ms: float | None,
) -> None:
    """Await `attempt()` until each key has an outcome; when the time is over, those without one get `TimedOutError`.

    Args:
        cluster: the cluster.
        attempt: one try; it puts outcomes into `done`, and raises a retriable error while one is missing.
        keys: what the call is about, such as topics or groups.
        done: the outcomes.
        what: names the call in the error.
        timeout_ms: None: `default_api_timeout_ms`.

    Raises:
        TimedOutError: the time is over, and no key has an outcome.
    """
    try:
        await cluster.retry_call(attempt, what, timeout_ms)
    except TimedOutError as error:
        if not done:
            raise
        for key in keys:
            done.setdefault(key, error)


_BROKER_TIME_SHARE = 0.8
"""Share of the call's time that the broker may take; the rest is for the network."""


async def send_to_leaders(
    cluster: Cluster,
    partitions: Sequence[TopicPartition],
    ask: Callable[[int, list[TopicPartition]], Awaitable[Mapping[TopicPartition, V | KafkaError]]],
    what: str,
    timeout_ms: float | None,
) -> dict[TopicPartition, V | KafkaError]:
    """Send requests to the leaders of partitions; retry where leaders have moved; return the outcome of each partition.

    Args:
        ask: Called with a node id and its partitions; returns a value or a KafkaError for each.
    """
    done: dict[TopicPartition, V | KafkaError] = {}

    async def send_to_leaders_once() -> None:
        nodes: dict[int, list[TopicPartition]] = {}
        moved: KafkaError | None = None
        wanted = [partition for partition in partitions if partition not in done]
        topics = await cluster.describe_topics({partition.topic for partition in wanted}, timeout_ms)
        for partition in wanted:
            node = cluster.metadata.leader(partition)
            topic = topics.get(partition.topic)
            if topic is not None and not topic.error and partition.partition not in topic.partitions:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                done[partition] = error_for(code, f"{partition}: the topic has {len(topic.partitions)} partitions")
            elif topic is None or (topic.error and topic.error is not ErrorCode.LEADER_NOT_AVAILABLE):
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.error
                done[partition] = error_for(code, f"topic {partition.topic!r}: {code.topic_text}")
            elif topic.error or node < 0:
                moved = error_for(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader now")
            else:
                nodes.setdefault(node, []).append(partition)
        for node, theirs in sorted(nodes.items()):
            try:
                outcomes = await ask(node, theirs)
            except RetriableError as error:
                moved = error
                continue
            for partition in [partition for partition in theirs if partition not in outcomes]:
                text = f"{what}: the answer of broker {node} says nothing of {partition}"
                done[partition] = error_for(ErrorCode.UNKNOWN_SERVER_ERROR, text)
            for partition, outcome in outcomes.items():
                if isinstance(outcome, KafkaError) and outcome.code.retriable:
                    moved = outcome
                else:
                    done[partition] = outcome
        if moved is not None:
            raise moved

    await retry_each(cluster, send_to_leaders_once, partitions, done, what, timeout_ms)
    return done


async def send_to_controller(
    cluster: Cluster,
    names: Sequence[K],
    ask: Callable[[Sequence[K]], Awaitable[Mapping[K, V | KafkaError]]],
    what: str,
    timeout_ms: float | None,
    attempts: RequestAttempts[K] | None = None,
) -> Results[K, V]:
    """Send a request to the controller, and retry at the new controller what the old one refused.

    Args:
        attempts: The tries of a change, if `ask` counts them.
    """
    done: dict[K, V | KafkaError] = {}
    tried = RequestAttempts[K]() if attempts is None else attempts

    async def send_to_controller_once() -> None:
        moved: KafkaError | None = None
        for name, found in (await ask([name for name in names if name not in done])).items():
            outcome = tried.outcome(name, found)
            if isinstance(outcome, RetriableError):
                moved = outcome
            else:
                done[name] = outcome
        if moved is not None:
            cluster.request_metadata()
            raise moved

    await retry_each(cluster, send_to_controller_once, names, done, what, timeout_ms)
    return Results.of(done)


def error_of_result(result: HasErrorCode, what: str) -> KafkaError:
    """Return the exception for a failed result, with the broker's message if it has one.

    Its text begins with `what`, unless the broker's message already names the resource.
    """
    code = ErrorCode.of(result.error_code)
    said: str | None = getattr(result, "error_message", None)
    name = what.partition(" ")[2].strip("'")
    if said and name and re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", said):
        return error_for(result.error_code, said)
    own = code.topic_text if what.startswith("topic ") else code.text
    return error_for(result.error_code, f"{what}: {said or own}")


def broker_timeout_ms(cluster: Cluster, timeout_ms: float | None) -> int:
    """Return the timeout to put into a request, in ms: how long the broker may work on it.

    That is a share of the call's own limit (None: `request_timeout_ms`); the rest is for the network.
    """
    limit = cluster.config.request_timeout_ms if timeout_ms is None else timeout_ms
    return max(1, int(limit * _BROKER_TIME_SHARE))


async def send_to_coordinators(
    cluster: Cluster,
    keys: Sequence[str],
    ask: Callable[[int, list[str]], Awaitable[Mapping[str, V | KafkaError]]],
    what: str,
    timeout_ms: float | None,
    kind: int = GROUP,
    *,
    attempts: RequestAttempts[str] | None = None,
) -> Results[str, V]:
    """Send requests to the coordinators of groups or transactional ids; retry where coordinators have moved.

    Args:
        ask: Called with a node id and its groups; returns a value or a KafkaError for each.
        attempts: The tries of a change, if `ask` counts them.

    Returns:
        An outcome for each key.
    """
    done: dict[str, V | KafkaError] = {}
    tried = RequestAttempts[str]() if attempts is None else attempts

    async def send_to_coordinators_once() -> None:
        nodes: dict[int, list[str]] = {}
        moved: KafkaError | None = None
        for key in keys:
            if key in done:
                continue
            try:
                nodes.setdefault(await cluster.coordinator(Coordinator(key, kind)), []).append(key)
            except RetriableError as error:
                moved = error
            except KafkaError as error:
                done[key] = tried.refusal_error(key, error, sent=False)
        for node, names in sorted(nodes.items()):
            try:
                outcomes = await ask(node, names)
            except RetriableError as error:
                outcomes = dict.fromkeys(names, error)
            for key, found in outcomes.items():
                outcome = tried.outcome(key, found)
                if isinstance(outcome, RetriableError):
                    cluster.forget_coordinator(Coordinator(key, kind), str(outcome))
                    moved = outcome
                else:
                    done[key] = outcome
        if moved is not None:
            raise moved

    await retry_each(cluster, send_to_coordinators_once, keys, done, what, timeout_ms)
    return Results.of(done)
