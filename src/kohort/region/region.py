"""The public interface of a consistent region."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack
from uuid import UUID, uuid4

from kohort.client.consumer.consumer import Consumer
from kohort.client.setting_types import ConnectionSettings
from kohort.client.settings import ConnectionConfig, Servers, client_config
from kohort.errors import InvalidInputError, TimedOutError
from kohort.io.channel import Link
from kohort.io.closing import ClosedOnExit
from kohort.io.platforms import require_posix
from kohort.region import messages
from kohort.region.admission import Applicant, admit_member
from kohort.region.agreement import compare_sink_with_topic
from kohort.region.consumer import RegionConsumer, ThreadsInsideMethods
from kohort.region.consuming.event_thread import EventThread
from kohort.region.consuming.publishing import SinkPublisher
from kohort.region.consuming.settings import MemberConfig, MemberSettings, split_member_options
from kohort.region.consuming.staging import RowStager
from kohort.region.consuming.starts import parse_start_option
from kohort.region.consuming.work_queue import RecordQueue
from kohort.region.control_plane.state import RegionConfig
from kohort.region.keyed_state.place import KeyedState
from kohort.region.keyed_state.states import KeyedStates
from kohort.region.leader_election import LeaderElection
from kohort.region.member.machine import MemberMachine
from kohort.region.member.state import MemberBehaviour
from kohort.region.message_codec import decode_order, encode_message
from kohort.region.region_key import KEY_VARIABLE, is_given_by_operator, region_key
from kohort.region.region_log import RegionLogView
from kohort.region.region_topic import member_client_id
from kohort.region.server import ControlPlane
from kohort.region.sinks import Sink, name_of_sink, stored_name_and_sequence
from kohort.region.sinks.dead_letters import DEAD_LETTER, check_dead_letters
from kohort.region.staged import check_member
from kohort.settings.config import is_loopback, parse_listen_address
from kohort.settings.server_access import METRICS_ARGUMENTS, READS_METRICS, ServerAccess
from kohort.settings.validation import duration_ms

if TYPE_CHECKING:
    from kohort.io.metrics_http import MetricsServer
    from kohort.region.metrics import MeasuredMember

NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
QUEUE_POLLS = 100
"""Number of polls whose records the queue can hold. Source: spec 5.2."""
AT_ONCE_POLLS = 20
"""Number of polls whose records the application gets together, if that many are queued."""
FETCH_MAX_BYTES = 2 * 1024 * 1024
"""A member's `fetch_max_bytes`, unless it is given. About four answers of each broker are in memory at once.

With the consumer's own 16 MiB a member takes 15 MB more, and no less processor time. At a round trip of 20 ms, a broker
still answers 100 MB/s."""
ANSWER_S = 10.0
LIKE_SECONDS_MAX = 100
"""A plain number of milliseconds up to this looks like seconds, as in checkpoint_every="5"."""


def _interval_ms(text: str) -> int:
    """Return the checkpoint interval in ms, from a duration such as '5s'.

    Raises:
        InvalidInputError: the text is no duration, or a small number without a unit.
    """
    every_ms, number = duration_ms("checkpoint_every", text), text.strip()
    if number.isdecimal() and every_ms <= LIKE_SECONDS_MAX:
        raise InvalidInputError(
            f"checkpoint_every={text!r} would be {number} ms; write '{number}s' for seconds, or '{number}ms'"
        )
    return every_ms


class RegionSettings(ConnectionSettings, total=False):
    """Options of `Region` about who reads its metrics.

    Attributes:
        metrics_tls: a PEM file of a private key and certificates: metrics are encrypted.
        metrics_client_ca: a PEM file of authorities: who reads metrics must show a certificate of theirs.
        metrics_insecure: everyone may read metrics, also from other machines.
    """

    metrics_tls: str | Path | None
    metrics_client_ca: str | Path | None
    metrics_insecure: bool


class Region(ClosedOnExit):
    """Members of one or more groups that checkpoint and reset together, so that their output is exactly once.

        region = Region("flights", "127.0.0.1:9092", checkpoint_every="5s")
        with region.consumer("worker-1", group_id="etl", topics=["flights"], into=ParquetFolder("out")) as consumer:
            for table in consumer.tables():
                consumer.submit(transform(table))

    Every application of a region creates one of the same name. One of them runs the control plane; when it dies,
    another takes over.
    """

    def __init__(
        self,
        name: str,
        bootstrap_servers: Servers = None,
        *,
        checkpoint_every: str | None = "5s",
        serves: bool = True,
        host: str = "127.0.0.1",
        key: str | None = None,
        metrics_listen: str | None = None,
        **settings: Unpack[RegionSettings],
    ) -> None:
        """Check the settings; the first call connects.

        Args:
            name: the region's name, the same in all its applications.
            bootstrap_servers: HOST:PORT, several with commas between or as a list.
            checkpoint_every: the checkpoint interval; None: only when a member or an operator requests one.
            serves: whether this process may run the control plane.
            host: where the control plane listens, if this process runs it; other hosts reach it by this name. On
                another address than loopback it speaks TLS, and needs a key and the extra `security`.
            key: the secret of the region's processes, 32 characters or more; None: `$KOHORT_REGION_KEY`, else a file of
                this user on this machine.
            metrics_listen: HOST:PORT where Prometheus reads the metrics of this application's members, and of the
                control plane if it is here. An address that other machines can reach needs `metrics_tls` with
                `metrics_client_ca`, or `metrics_insecure`.
            **settings: see `RegionSettings`; besides these, connection settings: Kafka's names with `_` for `.`.

        Raises:
            InvalidInputError: a name, a time or an address is invalid, or the system is neither Linux nor macOS.
            KafkaError: `metrics_listen` can't be listened on.
        """
        if not NAME.fullmatch(name):
            raise InvalidInputError(f"a region's name has 1 to 100 of A-Z, a-z, 0-9, '.', '_' and '-', not {name!r}")
        require_posix("a region")
        files = (settings.pop("metrics_tls", None), settings.pop("metrics_client_ca", None))
        tls, client_ca = (None if path is None else Path(path) for path in files)
        access = ServerAccess(tls, client_ca, settings.pop("metrics_insecure", False))
        client_config(ConnectionConfig, bootstrap_servers, settings)
        if serves and not is_loopback(host) and not is_given_by_operator(key):
            raise InvalidInputError(
                f"host={host!r} can be reached from other machines, whose members need the region's key: set "
                f"${KEY_VARIABLE} or key= to the same secret in all processes of the region, or keep the default host"
            )
        if metrics_listen is not None:
            at = parse_listen_address(metrics_listen)
            access.check(*at, f"metrics listener of region {name}", READS_METRICS, METRICS_ARGUMENTS)
        every_ms = None if checkpoint_every is None else _interval_ms(checkpoint_every)
        self.name = name
        self.config = RegionConfig(checkpoint_every_ms=every_ms)
        self._servers, self._settings = bootstrap_servers, settings
        self._home = RegionLogView(name, bootstrap_servers, settings, None if key is None else region_key(key))
        self._election = LeaderElection(self._home, self.config, serves=serves, host=host)
        self._consumers: set[RegionConsumer] = set()
        self._counted: set[MeasuredMember] = set()
        self._lock = threading.RLock()  # a signal's handler may close a member while this thread holds it
        self._pid = os.getpid()
        self._callers, self._closes_later, self._closing, self._closed = ThreadsInsideMethods(), False, 0, False
        self._metrics = None if metrics_listen is None else self._serve_metrics(*at, access)

    def _serve_metrics(self, host: str, port: int, access: ServerAccess) -> MetricsServer:
        from kohort.io.metrics_http import MetricsServer
        from kohort.io.server_certificates import load_certificates
        from kohort.region.metrics import RegionExporter  # an HTTP server that few applications need

        tls = load_certificates("metrics", access.tls, access.client_ca)
        exporter = RegionExporter(self.name, self._measured_now, self._plane_seen)
        return MetricsServer(host, port, exporter, tls, is_insecure=access.is_insecure)

    def _members_now(self) -> list[RegionConsumer]:
        with self._lock:
            return sorted(self._consumers, key=lambda member: member.name)

    def _measured_now(self) -> list[MeasuredMember]:
        with self._lock:
            return sorted((*self._consumers, *self._counted), key=lambda member: member.name)

    def export_metrics_of(self, member: MeasuredMember) -> None:
        """Export the metrics of a member that `consumer` did not create, such as a Spark query's."""
        with self._callers.mark_current_thread(), self._lock:
            self._counted.add(member)

    def _plane_seen(self) -> messages.RegionStatus | None:
        plane = self._election.running_control_plane()
        return None if plane is None else plane.describe()

    @property
    def metrics_address(self) -> str | None:
        """The address HOST:PORT at which Prometheus reads metrics; None: `metrics_listen` is not set."""
        return None if self._metrics is None else self._metrics.address

    # -- members

    def consumer(
        self,
        name: str,
        *,
        topics: Iterable[str] = (),
        pattern: str | None = None,
        into: Sink | None = None,
        **options: Unpack[MemberSettings],
    ) -> RegionConsumer:
        """Create a member of the region that reads with a consumer.

        Args:
            name: the member's name, unique in the region. It survives restarts; a second member of a name fences the
                first.
            topics: the topics to subscribe to, the same for all members of the group; alternatively `pattern`.
            pattern: a regular expression to subscribe with, in place of `topics`.
            into: the sink of submitted rows.
            **options: the options of `MemberSettings`, and the consumer's settings. `group_id` is required: a group
                belongs to one region.

        Raises:
            InvalidInputError: an option is invalid.
            KafkaError: the group is another region's, or clients outside this region read in it; or a permission is
                missing.
        """
        with self._call("consumer"):
            return self._new_consumer(name, topics, pattern, into, options)

    def _new_consumer(
        self, name: str, topics: Iterable[str], pattern: str | None, into: Sink | None, options: Mapping[str, Any]
    ) -> RegionConsumer:
        check_member(name)
        if isinstance(topics, str):
            raise InvalidInputError(f"topics={topics!r} is one name: write [{topics!r}]")
        topics = tuple(topics)
        if bool(topics) == (pattern is not None):
            raise InvalidInputError("say what a member reads: topics, or a pattern")
        own, settings = split_member_options(options)
        check_dead_letters(own.on_bad_record, into, own.dead_letters)
        begin = parse_start_option(own.start, own.auto_offset_reset)
        group_id = settings.get("group_id")
        if not group_id:
            raise InvalidInputError("a member of a region is a member of a group: say group_id")
        consumer = self.create_group_consumer(name, settings)
        try:
            who = Applicant(name, group_id, topics, pattern, own.reads_again)
            region_id, sink, letters = self._admit(who, into, own.dead_letters)
            states = self._states_in(own.keyed_state, region_id)
        except BaseException:
            consumer.close()
            raise
        machine = MemberMachine(
            self.name, name, uuid4(), group_id, name_of_sink(sink),
            MemberBehaviour(holds_back=own.on_rebalance == "checkpoint", keyed=states is not None),
            letters=name_of_sink(letters),
        )  # fmt: skip
        most = consumer.config.max_poll_records
        flow = RecordQueue(QUEUE_POLLS * most, AT_ONCE_POLLS * most, own.queue_max_bytes)
        stager = RowStager(sink, region_id, name, letters=letters, divides=own.on_bad_record == DEAD_LETTER)
        publishers = [SinkPublisher(place, name) for place in (sink, letters) if place is not None]
        config = MemberConfig(topics, pattern, begin, own.fail_on_data_loss, states)
        events = EventThread(machine, consumer, flow, stager, publishers, own, config)
        member = RegionConsumer(events, flow, stager, own, self._forget_member, states)
        try:
            member.start(self._election.connect_to_control_plane)
        except BaseException:
            consumer.close()
            raise
        with self._lock:
            self._consumers.add(member)
        return member

    @staticmethod
    def _states_in(place: KeyedState | None, region_id: UUID) -> KeyedStates | None:
        """Return the keyed states of a member, after checking that their storage can be written; None: none."""
        if place is None:
            return None
        bound = place.bind(region_id)
        bound.check_access()
        return KeyedStates(bound, place.work_folder)

    def admit(
        self, applicant: Applicant, into: Sink | None, letters: Sink | None = None
    ) -> tuple[UUID, Sink | None, Sink | None]:
        """Check a member's group and sinks, then record that the group belongs to the region.

        Members of any kind need this before they start.

        Returns:
            The region's id, and the sink and the dead-letter sink, both bound to the region.

        Raises:
            InvalidInputError: the group or a sink can't be the region's. The group is not claimed then; `admission` has
                the checks.
            KafkaError: a permission is missing, or there is no control plane.
        """
        with self._call("admit"):
            return self._admit(applicant, into, letters)

    def _admit(
        self, applicant: Applicant, into: Sink | None, letters: Sink | None
    ) -> tuple[UUID, Sink | None, Sink | None]:
        if self._closed:
            raise InvalidInputError(f"region {self.name} was closed here: make another Region for {applicant.member}")
        return admit_member(self.name, self._home, self._election.connect_to_control_plane, applicant, into, letters)

    def state_of(self, member: str) -> bytes | None:
        """Return the saved state with which a member would start, read from the region's metadata topic; None: none.

        Raises:
            KafkaError: the topic can't be read.
        """
        with self._call("state_of"):
            return self._home.read_saved_facts().application_states().get(member)

    def create_group_consumer(self, name: str, settings: Mapping[str, Any]) -> Consumer:
        """Create the Kafka consumer of a member: it commits nothing by itself, and has no start offset of its own.

        Raises:
            InvalidInputError: a setting is invalid, or is one that the region sets.
        """
        fixed = {"enable_auto_commit": False, "auto_offset_reset": "none"}
        clash = sorted(fixed.keys() & settings.keys())
        if clash:
            raise InvalidInputError(f"{', '.join(clash)}: the region decides that")
        own: dict[str, Any] = {
            "client_id": member_client_id(self.name, name),
            "partition_assignment_strategy": ("cooperative-sticky",),
            "fetch_max_bytes": FETCH_MAX_BYTES,
            **self._settings,
            **settings,
            **fixed,
        }
        return Consumer(self._servers, **own)

    def connect_to_control_plane(self) -> Link:
        """Return a connection to the current control plane; this process may become it if there is none.

        Raises:
            OSError: there is none at the moment; the caller should retry.
            KafkaError: the region's metadata topic can't be read or written.
        """
        with self._call("connect_to_control_plane"):
            return self._election.connect_to_control_plane()

    def _forget_member(self, member: RegionConsumer) -> None:
        with self._callers.mark_current_thread(), self._lock:
            self._consumers.discard(member)

    # -- operators

    def describe(self, timeout_s: float = ANSWER_S) -> messages.RegionStatus:
        """Return the control plane's description of the region.

        Args:
            timeout_s: how long to look for the control plane, and then to wait for its answer.

        Raises:
            TimedOutError: the control plane does not answer.
        """
        with self._call("describe"):
            return self._ask(messages.DescribeRegion(), timeout_s=timeout_s)

    def complete(self) -> int:
        """Return the id of the last checkpoint that all sinks show; 0: none. Readers of several sinks read up to it.

        Raises:
            TimedOutError: the control plane does not answer.
        """
        return self.describe().published

    def checkpoint(self) -> None:
        """Request a checkpoint of all members, and return without waiting for it.

        Raises:
            InvalidInputError: the region has stopped.
        """
        with self._call("checkpoint"):
            self._refuse_if_stopped(self._ask(messages.CheckpointRequest()))

    def _refuse_if_stopped(self, seen: messages.RegionStatus) -> None:
        """Raise an error if the region has stopped: it ignores requests for its members, of which it has none."""
        if seen.stopped:
            raise InvalidInputError(
                f"region {self.name} has stopped ({seen.stopped}): mend that, then `kohort region resume {self.name} "
                "--execute`"
            )

    def reset(
        self, cause: str = "a person asked for it", *, to_initial: bool = False, empty_sinks: bool = False
    ) -> None:
        """Reset the region to the last complete checkpoint, or to its initial offsets.

        Args:
            cause: for the log.
            to_initial: reset to the initial offsets: all records are read again, in further checkpoints.
            empty_sinks: remove published rows from the sinks, so that no row is there twice.

        Raises:
            InvalidInputError: the region has stopped; or checkpoints were published, and `empty_sinks` is not set; or
                no member is registered that would empty them. The control plane checks itself that the request names
                every sink that it empties.
        """
        with self._call("reset"):
            self._reset(cause, to_initial=to_initial, empty_sinks=empty_sinks)

    def _reset(self, cause: str, *, to_initial: bool, empty_sinks: bool) -> None:
        confirms = None
        self._refuse_if_stopped(seen := self._ask(messages.DescribeRegion()))
        if to_initial and seen.sequence > 0:
            if not empty_sinks:
                raise InvalidInputError(
                    f"region {self.name} has published sequences, and all of their rows come again from there: "
                    "add empty_sinks=True (--empty-sinks), which takes what was published out of its sinks, for ever"
                )
            left = [sink.place for sink in seen.sinks if not sink.publisher]
            if left or not any(member.registered for member in seen.members):
                what = ", ".join(left) or "its sinks"
                raise InvalidInputError(
                    f"region {self.name} has no member to empty {what}: start one that writes there first"
                )
            confirms = messages.EmptySinksConfirmation(seen.region_id, tuple(sink.place for sink in seen.sinks))
        self._refuse_if_stopped(
            self._ask(messages.RegionResetRequest(cause, forced=True, initial=to_initial, confirms=confirms))
        )

    def stop_member(self, name: str) -> None:
        """Request that a member leaves with the next complete checkpoint, and return without waiting for that.

        Wait until the region's metadata topic records the request, so that a later control plane knows of it. It is for
        this member, and not for another that starts under its name. A name that no member has is ignored.

        Raises:
            TimedOutError: the topic does not record it within 10 s, or the control plane was replaced: repeat the call.
        """
        with self._call("stop_member"):
            self._stop_member(name)

    def _stop_member(self, name: str) -> None:
        asked = seen = self._ask(messages.StopMember(name))
        until_s = time.monotonic() + ANSWER_S
        while any(member.name == name and member.stop_unsaved for member in seen.members):
            if time.monotonic() > until_s:
                raise TimedOutError(f"the topic does not record that {name} is to leave region {self.name}: try again")
            time.sleep(0.05)
            seen = self._ask(messages.DescribeRegion())
            if seen.term != asked.term:
                raise TimedOutError(f"region {self.name} has another control plane now: tell {name} again to leave")

    def resume(self) -> None:
        """Resume a stopped region whose problem is repaired, and wait until the region's metadata topic records it.

        Raises:
            TimedOutError: the control plane can't write it.
        """
        with self._call("resume"):
            self._resume()

    def _resume(self) -> None:
        self._ask(messages.ResumeRegion())
        until_s = time.monotonic() + ANSWER_S
        while (stopped := self._home.read_saved_facts().stopped) is not None and stopped.cause:
            if time.monotonic() > until_s:
                raise TimedOutError(f"region {self.name} could not be told to go on within {ANSWER_S:g} s")
            time.sleep(0.05)

    def serve(self) -> ControlPlane:
        """Become the region's control plane, until another process takes over or `close` is called."""
        with self._call("serve"):
            return self._election.become_control_plane()

    def wait_until_replaced(self, timeout_s: float) -> bool:
        """Wait until this application no longer serves the region; return False if it still does after the timeout.

        A term that ends without a successor, for example when the cluster aborts its transaction, is followed by
        another one here.
        """
        return self._election.replaced.wait(timeout_s)

    def is_served(self) -> bool:
        """Return whether a control plane answers."""
        with self._call("is_served"):
            return self._is_served()

    def _is_served(self) -> bool:
        try:
            self._election.connect_to_control_plane(retries=False).close()
        except OSError:
            return False
        return True

    def adopt(self, into: Sink) -> None:
        """Continue from what a sink shows that disagrees with the region's metadata topic, or has a new name.

        No application may serve the region. If the sink is ahead, the region continues numbering from there. If it is
        behind, the rows that it lacks stay missing. `reset(to_initial=True, empty_sinks=True)` reads everything again
        after that. An interrupted call is completed by repeating it.

        Raises:
            InvalidInputError: the region is served, or does not exist; or the sink is another region's.
        """
        with self._call("adopt"):
            self._adopt(into)

    def _adopt(self, into: Sink) -> None:
        if self._is_served():
            raise InvalidInputError(f"region {self.name} has a control plane: end its applications first")
        birth = self._home.read_saved_facts().birth
        if birth is None:
            raise InvalidInputError(f"there is no region {self.name!r}: nothing is there to agree with")
        sink = into.bind(self.name, birth.region_id)
        known = stored_name_and_sequence(sink)
        was, shows = (sink.adopt(), sink.published()) if known is None else known
        self._home.adopt(name_of_sink(sink), was, shows)
        if known is not None:
            sink.adopt()  # last: until then a repeated call finds the earlier name

    def compared(self, into: Sink) -> str:
        """Return how a sink and the region's metadata topic disagree; empty: they agree. Nothing is changed.

        Raises:
            InvalidInputError: the region does not exist; or the sink is another region's.
        """
        with self._call("compared"):
            return self._compared(into)

    def _compared(self, into: Sink) -> str:
        saved = self._home.read_saved_facts()
        if saved.birth is None:
            raise InvalidInputError(f"there is no region {self.name!r}: nothing is there to agree with")
        sink = into.bind(self.name, saved.birth.region_id)
        found = compare_sink_with_topic(
            self.name, sink.place, sink.published(), saved.to_region_facts(self.name, 0).sink_id_bounds(sink.place)
        )
        return "" if found is None else found.cause

    def reseal(self) -> int:
        """Trust the region's records, whichever key sealed them, and seal them with this process's key.

        No application may serve the region. For a key that was lost or replaced.

        Returns:
            The number of records.
        """
        with self._call("reseal"):
            return self._home.reseal()

    def delete(self) -> str:
        """Delete the region's records; no application may serve it. Its sinks keep their rows.

        Returns:
            The folder of the region's keyed states, in the `KeyedState` of its members; empty: it had none. The folder
            is not removed.
        """
        with self._call("delete"):
            folder = ""
            with suppress(InvalidInputError):  # no record is valid: which states they name is unknown
                saved = self._home.read_saved_facts()
                last = saved.manifests.get(saved.last_complete_sequence)
                if last is not None and any(position.state is not None for position in last.positions):
                    folder = last.region_id.hex
            self._home.delete_region_and_claims()
            return folder

    @contextmanager
    def _call(self, method: str) -> Iterator[None]:
        """Guard a public method: refuse it to a signal handler that has interrupted another call, which could deadlock.

        A `close` that came meanwhile is carried out afterwards.

        Raises:
            InvalidInputError: such a handler has made this call.
        """
        if self._callers.includes_current_thread():
            raise InvalidInputError(
                f"{method} was called by a signal's handler that interrupted another call of region {self.name} on the "
                "same thread: set a flag there, or call it from another thread"
            )
        try:
            with self._callers.mark_current_thread():
                yield
        finally:
            if self._closes_later:
                self._closes_later = False
                self.close()

    def _ask(self, *said: messages.Report | messages.Ask, timeout_s: float = ANSWER_S) -> messages.RegionStatus:
        link = self._reach(timeout_s)
        try:
            for message in (*said, messages.DescribeRegion()):
                link.send(encode_message(message))
            for body in link.receive_bodies(timeout_s):
                answer = decode_order(body)
                if isinstance(answer, messages.ResetDeclined):
                    raise InvalidInputError(f"region {self.name} declines the request: {answer.why}")
                if isinstance(answer, messages.RegionStatus):
                    return answer
        finally:
            link.close()
        raise TimedOutError(f"the control plane of region {self.name} does not respond")

    def _reach(self, timeout_s: float) -> Link:
        until_s = time.monotonic() + timeout_s
        while True:
            try:
                return self._election.connect_to_control_plane()
            except OSError as error:
                if time.monotonic() > until_s:
                    raise TimedOutError(f"region {self.name} has no control plane: {error}") from error
                time.sleep(0.2)

    # -- shutdown

    def close(self) -> None:
        """Close the members, and the control plane if it runs in this process. Do nothing in a forked child.

        From a thread that is processing a table, also in a signal handler, `close` asks the members to leave and
        returns at once. Close the region again, or leave its `with` block, after the loop.

        If a signal handler has interrupted another call of the region, `close` returns at once too, and closes when
        that call ends.

        Raises:
            TimedOutError: a member's last checkpoint did not complete in time; everything is closed nevertheless.
        """
        ident = threading.get_ident()
        if os.getpid() != self._pid or self._closing == ident:
            return
        if self._callers.includes_current_thread():
            self._closes_later = True
            for member in list(self._consumers):
                member.request_close()
            return
        members = self._members_now()
        if any(member.must_not_wait_here() for member in members):
            for member in members:
                member.request_close()
            return
        with ExitStack() as closing:
            self._closing, self._closed = ident, True
            closing.callback(setattr, self, "_closing", 0)
            if self._metrics is not None:
                closing.callback(self._metrics.close)
            closing.callback(self._home.close)
            closing.callback(self._election.close)
            for member in reversed(members):
                closing.callback(member.close)
