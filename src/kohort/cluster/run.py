"""The process of a coordinator over Kafka, from its options to a clean shutdown: the command `kohort coordinator`.

| at the start | while it runs | at the end |
|---|---|---|
| connect to Kafka and read its topics | poll topics every second | hand over the shards |
| create or check the journal topic | begin and end shards as the placement changes | answer waiting requests |
| accept clients | report that the event loop is alive | unregister |
| register as a coordinator, and load its shards | | |

A temporary failure is retried for as long as the process lives. A failure that only a person can mend ends the process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import tempfile
import uuid
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kohort.broker.api import push, sasl
from kohort.broker.api.discovery import unknown_api_versions
from kohort.broker.audit import AuditLog
from kohort.broker.authorization import Resource, is_allowed
from kohort.broker.config.settings import super_users
from kohort.broker.config.users import Users
from kohort.broker.dispatch import Dispatcher, Route, api_handler, api_keys, route_table
from kohort.broker.routes import GROUP_ROUTES
from kohort.broker.security.listener_socket import ListenerSocket
from kohort.broker.security.listeners import open_listeners, planned_listeners, sasl_servers
from kohort.broker.server.listener import divide_descriptors, raise_open_file_limit
from kohort.broker.server.requests import Request
from kohort.broker.serving import Serving, serve_until_ended
from kohort.client.net.asyncio_driver import AsyncClient
from kohort.client.net.health import check_reachable
from kohort.client.settings import ConnectionConfig
from kohort.cluster.coordination.group_service import GroupCoordination
from kohort.cluster.coordination.peers import Peers
from kohort.cluster.coordination.placement import Candidate
from kohort.cluster.coordination.service import CoordinationService
from kohort.cluster.host import CoordinatorHost
from kohort.cluster.journal.journal_partition import JournalSettings
from kohort.cluster.journal.topic import journal_topic
from kohort.cluster.kafka_authorizer import KafkaAuthorizer, poll_security, refuse_secured_kafka
from kohort.cluster.other_clients import KohortClientsDispatcher, OtherClientsHost
from kohort.cluster.retry import retry_forever
from kohort.cluster.settings import CoordinatorConfiguration, advertised_address, coordinator_id
from kohort.cluster.shard_ownership import OwnedShard
from kohort.cluster.zookeeper.group_mirror import GroupMirror
from kohort.cluster.zookeeper.security import ZooKeeperAddress
from kohort.cluster.zookeeper.service import ZooKeeperCoordination
from kohort.cluster.zookeeper.shown import ALIVE_S, mirror_leader_topics
from kohort.coordinator.shard import Shard
from kohort.errors import InvalidInputError, KafkaError
from kohort.ids import AclOperation
from kohort.io.log_throttle import log_to_stderr
from kohort.wire.coordinators import DescribeCoordinatorsRequest, DescribeCoordinatorsResponse

if TYPE_CHECKING:
    from prometheus_client.registry import Collector


# -- DescribeCoordinators: the coordinators, the placement, and the state of this coordinator's shards


def describe_coordinators(
    host: CoordinatorHost, request: Request[DescribeCoordinatorsRequest]
) -> DescribeCoordinatorsResponse:
    """Return the placement that this process uses; and, to clients that may describe the cluster, its shards.

    Every client learns the coordinators, as it learns brokers from Metadata: it asks all of them for groups.
    """
    sees_shards = is_allowed(host, request, AclOperation.DESCRIBE, Resource.CLUSTER)
    response = DescribeCoordinatorsResponse(node_id=host.me.id, shards=[*owned_shard_rows(host)] if sees_shards else [])
    placement = host.coordination.placement
    if placement is not None:
        make = DescribeCoordinatorsResponse.Coordinator
        response.elected_id, response.map_version = placement.elected, placement.version
        response.owners = [*placement.owners]
        response.coordinators = [
            make(node_id=candidate.id, host=candidate.host, port=candidate.port, rack=candidate.rack)
            for candidate in placement.candidates
        ]
    return response


def owned_shard_rows(host: CoordinatorHost) -> Iterator[DescribeCoordinatorsResponse.Shard]:
    """Return the metrics of each shard that this coordinator owns, as rows of DescribeCoordinators."""
    for shard in host.groups:
        tenure = host.ownership.owned.get(shard.index)
        if tenure is not None:
            yield _shard(host, shard, tenure)


def _shard(host: CoordinatorHost, shard: Shard, owned: OwnedShard) -> DescribeCoordinatorsResponse.Shard:
    times = host.ownership.append[shard.index]
    count = sum(times.counts)
    row = DescribeCoordinatorsResponse.Shard(
        index=shard.index,
        phase=shard.phase.name.lower(),
        load_ms=-1 if owned.load_s is None else round(owned.load_s * 1000),
        appends=count,
        append_p50_us=round(times.quantile_s(0.5) * 1e6) if count else -1,
        append_p99_us=round(times.quantile_s(0.99) * 1e6) if count else -1,
        fences=host.ownership.fences.get(shard.index, 0),
        groups=sum(1 for _ in shard.group_states()),
    )
    if owned.journal is not None:
        metrics = owned.journal.metrics
        row.term = metrics.epoch
        if metrics.acknowledged_ms:
            row.proof_age_ms = max(0, round(host.loop.time() * 1000 - metrics.acknowledged_ms))
    return row


_STATUS = api_handler(DescribeCoordinatorsRequest, DescribeCoordinatorsResponse, describe_coordinators)
STATUS_ROUTES: dict[int, Route[CoordinatorHost]] = {
    key: replace(route, needs=()) for key, route in route_table([[_STATUS]]).items()
}
"""The route of DescribeCoordinators, whose handler checks the right itself."""

# -- APIs of a coordinator over Kafka: groups, endpoints, logins, and its own description

COORDINATOR_ROUTES: dict[int, Route[CoordinatorHost]] = {
    **GROUP_ROUTES,
    **STATUS_ROUTES,
    **route_table([sasl.HANDLERS]),
}


T = TypeVar("T")
log = logging.getLogger("kohort.cluster")

REACH_MS = 4_000
"""Timeout of one attempt to connect to Kafka; the log reports each failed series of attempts."""
RETIRE_S = 10.0
"""Timeout of the handover, which takes one rebalance of the coordinators. After it the shards are simply left."""


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """The options that a coordinator is started with.

    Attributes:
        kafka: connection settings of the Kafka cluster.
        listen: HOST:PORT, or PROTOCOL://HOST:PORT.
        configured: the settings, from `settings.parse_settings`.
        zookeeper: where ZooKeeper is; None: the coordinators use a group on Kafka.
        id: the node id that clients see; None: it is derived from the address.
        trust_everyone: whether the coordinator's clients may do what the coordinator itself may do at a secured Kafka.
    """

    kafka: ConnectionConfig
    listen: str
    configured: CoordinatorConfiguration
    zookeeper: ZooKeeperAddress | None = None
    id: int | None = None
    trust_everyone: bool = False


class CoordinatorServing(Serving):
    """A coordinator's socket and metrics, those of its shards included."""

    _groups: CoordinatorHost

    def _exporter(self) -> Collector:
        from kohort.cluster.metrics_exporter import CoordinatorExporter  # few need it

        host = self._groups
        return CoordinatorExporter(
            lambda: self.call_on_loop(self.metrics),
            lambda: host.coordinator_id,
            lambda: self.call_on_loop(lambda: [*owned_shard_rows(host)]),
        )


class RunningCoordinator:
    """A coordinator on a running event loop.

    Attributes:
        failed: whether it ends because of a fault, or of something that only a person can mend.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, options: CoordinatorOptions) -> None:
        self._loop = loop
        self._options = options
        config = options.configured
        self._listener = listener = _listener(options)
        (self._plan,) = planned_listeners(options.listen, config.security)
        try:
            self._host, self._port = advertised_address(config.socket, listener.host, listener.port)
            room = divide_descriptors(raise_open_file_limit()).connections
            self._client = AsyncClient(options.kafka)
            self._coordination = _coordination_service(options)
            self.host = CoordinatorHost(
                loop,
                config.groups,
                self._client,
                self._coordination,
                (config.own.placement_group,),
                api_keys(COORDINATOR_ROUTES),
            )
            self._authorizer = self._kafka_authorizer()
            self.host.authorizer = self._authorizer
            dispatcher = Dispatcher(self.host, COORDINATOR_ROUTES, unknown_api_versions, pushing=push.handle_frame)
            refusals = OtherClientsHost(self.host, self._authorizer)
            dispatch = KohortClientsDispatcher(dispatcher.dispatch, refusals).dispatch
            self.serving = CoordinatorServing(self.host, [listener], config.socket, room, dispatch)
            self._users = CoordinatorUsers(config.security)
            logins = sasl_servers(options.listen, config.security, self._users, self.serving.server.logins)
            listener.sasl = logins.get(listener.name)
            self._open_audit_log(config)
        except BaseException:
            listener.sock.close()
            raise
        self._tasks: list[asyncio.Task[None]] = []
        self._peers: Peers | None = None
        self.failed = False

    def _open_audit_log(self, config: CoordinatorConfiguration) -> None:
        """Open the audit log if `audit.log.location` is set.

        Raises:
            InvalidInputError: its folder does not exist or can't be written.
        """
        if not config.own.audit_location:
            if self._plan.authenticates:
                log.info("no audit log: set audit.log.location to a file that records logins, refusals and changes")
            return
        path = Path(config.own.audit_location)
        if not os.access(path.parent, os.W_OK):
            raise InvalidInputError(f"audit.log.location: there is no folder {path.parent} that can be written")
        audit = AuditLog(path, config.socket.audit_file_bytes, config.socket.audit_files)
        self.host.audit = audit
        self.serving.server.logins.on_login = audit.record_login
        if self._authorizer is not None:
            self._authorizer.record_refusals(audit.record_refusal)

    def _kafka_authorizer(self) -> KafkaAuthorizer | None:
        """Return the authorizer of clients' requests; None: clients may do everything, or do not log in."""
        options = self._options
        if options.trust_everyone or not self._plan.authenticates:
            return None
        chosen = options.configured.socket
        return KafkaAuthorizer(self._client, super_users(chosen.super_users), chosen.allow_if_no_acl)

    @property
    def address(self) -> str:
        """The address that clients connect to, as HOST:PORT."""
        return self.serving.address

    async def start_accepting(self) -> None:
        """Accept clients, and return once the shards that are assigned to this process serve.

        Raises:
            KafkaError: a person has to change something; the message says what.
        """
        cluster, own = self._client.cluster, self._options.configured.own
        await retry_forever("Kafka", lambda: self._client.call(check_reachable(cluster, REACH_MS)))
        if cluster.connections.apart:
            raise InvalidInputError("--kafka names coordinators of kohort's; name the brokers of the Kafka cluster")
        if self._authorizer is not None:
            await self._authorizer.begin()
            self._run_in_background(self._authorizer.poll_acls(), "access rules of Kafka")
        elif not self._options.trust_everyone:
            await refuse_secured_kafka(self._client, self._options.kafka)
            self._run_in_background(poll_security(self._client, self._options.kafka), "security of Kafka")
        topics = self.host.topics
        await retry_forever("Kafka's topics", topics.request_all_topics)
        me = self._candidate({place.node_id for place in topics.brokers})
        settings = JournalSettings(
            coordinator=me.id,
            incarnation=me.incarnation,
            host=me.host,
            port=me.port,
            topic=own.journal_topic,
            partitions=own.journal_partitions,
            replication_factor=own.journal_replication,
            unfenced_records=own.journal_unfenced_records,
            answer_ms=own.journal_answer_ms,
        )
        topic = await retry_forever(
            f"topic {own.journal_topic}", lambda: self._client.call(journal_topic(cluster, settings))
        )
        self.host.set_identity(me, topic, settings)
        self._run_in_background(topics.poll_topics(), "topics of Kafka")
        self.serving.listen()
        await retry_forever("a place among the coordinators", lambda: self._coordination.open(me, topic.partitions))
        log.info("coordinator %d registered at %s, incarnation %s", me.id, me.address, me.incarnation)
        logs_in = self._listener.protocol != "PLAINTEXT"
        # Half of our own deadline of logins, since coordinators of one cluster are set alike.
        self._peers = Peers(self._coordination, me, renew_s=self._listener.login_timeout_ms / 2000 if logs_in else None)
        self._coordination.on_changes(self._follow)
        self._run_in_background(self._keep_session_alive(me), "keep-alive of the session")
        self._run_in_background(
            self.host.imports.poll_imported_groups(self.host.groups, self.host.record_metric), "groups at Kafka"
        )
        if isinstance(self._coordination, ZooKeeperCoordination):
            self._coordination.on_topics_changed(topics.poll_topics_now)
            self._run_in_background(mirror_leader_topics(self._coordination, self.host), "mirror of topics")
            mirror = GroupMirror(self._coordination, self.host)
            self.host.metrics.mirror = mirror.meter
            self.host.on_rebalanced = mirror.request_early_run
            self._run_in_background(mirror.mirror_at_intervals(), "mirror of groups")
        self.host.ownership.start_owning(me)
        self._follow()
        await self.host.ownership.wait_until_shards_serve()

    def _run_in_background(self, coroutine: Coroutine[None, None, None], name: str) -> None:
        """Run a background task until shutdown; a fault in it ends the process with its traceback."""
        task = self._loop.create_task(coroutine, name=name)
        task.add_done_callback(self._look_for_fault)
        self._tasks.append(task)

    def _look_for_fault(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (fault := task.exception()) is not None:
            traceback = None if isinstance(fault, InvalidInputError) else fault
            log.error(
                "this coordinator shuts down: its background task %r failed: %s",
                task.get_name(),
                fault,
                exc_info=traceback,
            )
            self.failed = True
            signal.raise_signal(signal.SIGTERM)

    def _follow(self) -> None:
        """Begin and end shards, and watch peers, according to the placement; called when it may have changed."""
        self.host.ownership.follow_placement()
        if self._peers is not None:
            self._peers.watch_candidates()

    def _candidate(self, brokers: set[int]) -> Candidate:
        number = coordinator_id(self._options.id, f"{self._host}:{self._port}", brokers)
        return Candidate(number, uuid.uuid4().hex, self._host, self._port, self._options.configured.socket.rack)

    async def _keep_session_alive(self, me: Candidate) -> None:
        """Keep the coordination service's session alive while the event loop runs and this coordinator can work.

        Raises:
            KafkaError: its client has ended, or Kafka has a broker with this id. The process ends then.
        """
        while True:
            self._coordination.report_loop_alive()
            self._client.raise_if_closed()
            if any(place.node_id == me.id for place in self.host.topics.brokers):
                raise InvalidInputError(f"Kafka has a broker {me.id} now, whom clients can't tell from this one: --id")
            await asyncio.sleep(ALIVE_S)

    async def close(self) -> None:
        """Hand over the shards, stop accepting clients, answer waiting requests, and unregister."""
        peers, self._peers = self._peers, None
        if peers is not None:
            await peers.close()
            try:
                await asyncio.wait_for(self._coordination.hand_over_and_leave(), RETIRE_S)
                await self.host.ownership.wait_handed_over()
            except (TimeoutError, KafkaError) as error:
                log.warning(
                    "the shards could not be handed over (%s): other coordinators take them over", error or "no answer"
                )
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.host.imports.close()
        await self.host.topics.close()
        await self.serving.close()
        await self._coordination.close()
        await self._client.close()
        self._users.close()


def _coordination_service(options: CoordinatorOptions) -> CoordinationService:
    own = options.configured.own
    if options.zookeeper is not None:
        return ZooKeeperCoordination(options.zookeeper, own.placement_session_ms)
    return GroupCoordination(options.kafka, own.placement_group, session_ms=own.placement_session_ms)


def _listener(options: CoordinatorOptions) -> ListenerSocket:
    """Bind the coordinator's listening socket.

    Raises:
        KafkaError: a setting is invalid, or the address can't be used.
    """
    listeners = open_listeners(options.listen, options.configured.security)
    if len(listeners) > 1:
        for listener in listeners:
            listener.sock.close()
        raise InvalidInputError("a coordinator has one listener: clients and other coordinators know one address of it")
    return listeners[0]


class CoordinatorUsers(Users):
    """The users of a coordinator's listener, from `sasl.users.location`: in memory, as salted hashes."""

    def __init__(self, security: Mapping[str, Any]) -> None:
        """Read the users and passwords of `sasl.users.location`.

        Raises:
            InvalidInputError: it can't be read.
        """
        self._folder = tempfile.TemporaryDirectory(prefix="kohort-coordinator-")
        super().__init__(Path(self._folder.name))
        location = security.get("sasl.users.location")
        if location:
            self.add_users_from_file(str(location))

    def close(self) -> None:
        """Remove the temporary folder with the users' credentials."""
        self._folder.cleanup()


def run_coordinator(options: CoordinatorOptions) -> int:
    """Run the command `kohort coordinator` until it is stopped; return the exit code.

    Raises:
        KafkaError: it can't start, or can't go on.
    """
    log_to_stderr()
    kafka = replace(options.kafka, client_id="kohort-coordinator")
    chosen = replace(options, kafka=kafka)
    made: list[RunningCoordinator] = []

    def start_coordinator(loop: asyncio.AbstractEventLoop) -> RunningCoordinator:
        made.append(RunningCoordinator(loop, chosen))
        return made[0]

    serve_until_ended(start_coordinator, RunningCoordinator.start_accepting)
    return 1 if made[0].failed else 0
