"""Kafka's own groups, as the coordinators over it ask for them: what a group has there, and who is in it.

Nothing is changed at Kafka. A group's members are looked for before its offsets are read: what a member commits as it
leaves is then among them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from kohort.broker.shards import GroupShards
from kohort.client.admin.group_offsets import list_consumer_group_offsets
from kohort.client.admin.groups import describe_consumer_groups, list_groups
from kohort.client.admin.values import GroupDescription
from kohort.client.net.asyncio_driver import AsyncClient
from kohort.client.net.cluster import Cluster, Coordinator
from kohort.errors import ErrorCode, KafkaError, RetriableError
from kohort.groups.events import Event, GroupImported, OffsetToCommit
from kohort.groups.outcome import Counted, ImportGroup, Meter

log = logging.getLogger("kohort.cluster")

ANSWER_MS = 5_000
"""Kafka's coordinator is given so long; then who asks is told to come back, and it is asked again later."""
ASKED_AT_A_TIME = 16
"""Groups that are asked for at a time: enough to hide the way there, and no storm when all come over at once."""
LOOK_S = 60.0
"""How often is looked whether groups that are here have members at Kafka."""
CLIENTS_TOLD = 3
"""Clients that are named of those that are at Kafka; there may be thousands."""
HOW_TO_GO_ON = (
    "stop them, or point them at this coordinator too: the group is taken over with its offsets when the last has left"
)
_WITHOUT_MEMBERS = frozenset({"Empty", "Dead"})


class KafkaGroups:
    """What Kafka's own coordinator has of groups."""

    def __init__(self, client: AsyncClient, reserved: Collection[str] = ()) -> None:
        """`client`: bootstrapped at Kafka's brokers. `reserved`: groups by which the coordinators find each other."""
        self._client = client
        self._reserved = frozenset(reserved)
        self._room = asyncio.Semaphore(ASKED_AT_A_TIME)
        self._tasks: set[asyncio.Task[None]] = set()
        self._doubled: frozenset[str] = frozenset()

    def ask(self, question: ImportGroup, done: Callable[[Event], None]) -> None:
        """Find out what there is of a group; `done` is called once, later, on the loop."""
        self._start(self._answer(question, done))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, question: ImportGroup, done: Callable[[Event], None]) -> None:
        if question.group_id in self._reserved:
            text = "the coordinators find each other by this group: choose another name"
            done(_refused(question, ErrorCode.INVALID_GROUP_ID, text))
            return
        async with self._room:
            cluster = self._client.cluster
            try:
                answer = await self._client.call(found_at_kafka(cluster, question))
            except KafkaError as error:
                answer = _failed(question, error)
            cluster.forget_coordinator(Coordinator(question.group_id))
        done(answer)

    async def watch(self, groups: GroupShards, note: Callable[[Counted], None]) -> None:
        """Look again and again whether groups that are here have members at Kafka too, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look(groups, note)
            except KafkaError as error:
                log.info("it can't be seen whether groups have members at Kafka's own coordinator: %s", error)

    async def look(self, groups: GroupShards, note: Callable[[Counted], None]) -> None:
        """Warn of groups that are here and have members at Kafka: two coordinators give out the same partitions.

        Raises:
            KafkaError: Kafka does not answer.
        """
        listed = await self._client.call(list_groups(self._client.cluster, timeout_ms=ANSWER_MS))
        active = {each.group_id for each in listed if each.state not in _WITHOUT_MEMBERS}
        doubled = {group for group in active if groups.knows(group)}
        for group in sorted(doubled - self._doubled - self._reserved):
            log.warning(
                "group %s is here and has members at Kafka's own coordinator too: both give out the same partitions, "
                "and commits there are not seen here. Point all its members at this coordinator",
                group,
            )
            note(Counted(Meter.MEMBERS_ELSEWHERE, 1))
        self._doubled = frozenset(doubled)

    async def close(self) -> None:
        """What is being asked is not answered any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def found_at_kafka(cluster: Cluster, question: ImportGroup) -> GroupImported:
    """What Kafka's coordinator has of a group.

    Raises:
        KafkaError: it does not answer, or refuses.
    """
    group = question.group_id
    described = await describe_consumer_groups(cluster, [group], timeout_ms=ANSWER_MS)
    error = described.errors.get(group)
    if error is not None and error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
        raise error
    if error is None and (members := described.values[group]).state not in _WITHOUT_MEMBERS:
        return _refused(question, ErrorCode.NON_EMPTY_GROUP, _members_there(members))
    found = await list_consumer_group_offsets(cluster, group, require_stable=True, timeout_ms=ANSWER_MS)
    for partition, unstable in sorted(found.errors.items()):
        text = f"Kafka's own coordinator does not tell the offset of {partition} yet: {unstable}"
        return GroupImported(group, question.ticket, (), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, text)
    offsets = tuple(
        OffsetToCommit(partition.topic, partition.partition, each.offset, each.leader_epoch, each.metadata)
        for partition, each in found.values.items()
        if each is not None
    )
    if offsets and error is not None:
        text = "Kafka's own coordinator has it as a group of another kind (streams), which is not served here"
        return _refused(question, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, text)
    return GroupImported(group, question.ticket, offsets)


def _members_there(group: GroupDescription) -> str:
    clients = sorted({f"{member.client_id} at {member.host.lstrip('/')}" for member in group.members})
    shown = ", ".join(clients[:CLIENTS_TOLD]) + (", …" if len(clients) > CLIENTS_TOLD else "")
    count = len(group.members)
    return f"it has {count} member{'s' * (count != 1)} at Kafka's own coordinator ({shown}): {HOW_TO_GO_ON}"


def _refused(question: ImportGroup, code: ErrorCode, text: str) -> GroupImported:
    return GroupImported(question.group_id, question.ticket, (), code, text)


def _failed(question: ImportGroup, error: KafkaError) -> GroupImported:
    """No answer is no answer; a right that is missing is told to who asks, since waiting does not cure it."""
    if error.code is ErrorCode.GROUP_AUTHORIZATION_FAILED:
        text = (
            "Kafka does not let the coordinator look at its own group of this name: give it READ and DESCRIBE on "
            "groups, or set group.import=off, with which groups begin without Kafka's offsets"
        )
        return _refused(question, error.code, text)
    waits = "" if isinstance(error, RetriableError) else ", which may need somebody"
    text = f"Kafka's own coordinator does not tell what it has of it{waits}: {error}"
    return _refused(question, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, text)
