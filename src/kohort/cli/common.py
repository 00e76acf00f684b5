"""Options of all commands, and the clients that the options configure."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Parameter

from kohort.cli.app import DONE, FAILED, UsageError, explain_hint, property_location_hint
from kohort.cli.output import print_note
from kohort.errors import InvalidInputError, KafkaError, TimedOutError
from kohort.io.platforms import SIGNAL_CHECK_S
from kohort.settings.config import parse_assignments, parse_listen_address, read_properties
from kohort.settings.server_access import METRICS_OPTIONS, READS_METRICS, ServerAccess
from kohort.settings.validation import is_secret

if TYPE_CHECKING:
    from kohort.broker.security.development import DevelopmentFiles
    from kohort.client.admin.admin import Admin
    from kohort.cluster.zookeeper.security import ZooKeeperAddress
    from kohort.io.server_certificates import ServerCertificates
    from kohort.lag import LagReader
    from kohort.lag.reading import ReadOthers

Client = TypeVar("Client")
DEFAULT_BOOTSTRAP_SERVER = "127.0.0.1:9092"
DEFAULT_CALL_MS = 30_000
REACH_MS = 4_000
"""Connection timeout of a command: longer than a broker on this machine takes to start."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Common:
    """The options of every command."""

    bootstrap_server: str | None = None
    """HOST:PORT of a broker, several with commas between. Else the configuration file's, else $KOHORT_BOOTSTRAP_SERVER,
    else 127.0.0.1:9092."""

    command_config: Path | None = None
    """A file of Kafka client properties, for security and the like."""

    json: bool = False
    """Print JSON."""

    timeout: int | None = None
    """How long a call may take, in milliseconds; 30000 unless given, but 4000 while no broker is reached."""

    @property
    def call_timeout_ms(self) -> int:
        """The timeout of a call in ms: the value of --timeout, or the default."""
        return DEFAULT_CALL_MS if self.timeout is None else self.timeout

    def client_settings(self, accepted: type) -> tuple[str, dict[str, Any]]:
        """Return the bootstrap servers, and those properties of the file that a configuration class accepts.

        Raises:
            UsageError: the file names a property that no client knows, or --timeout is negative.
        """
        if self.timeout is not None and self.timeout < 0:
            raise UsageError(f"--timeout {self.timeout}: give a number of milliseconds")
        given = read_client_properties(self.command_config) if self.command_config else {}
        servers = self.bootstrap_server or given.pop("bootstrap.servers", None)
        given.pop("bootstrap.servers", None)
        known = _known_to_any_client(given) if given else given
        from kohort.settings.config import settings

        names = {setting.declaration.name for setting in settings(accepted).values()}
        names |= {alias for setting in settings(accepted).values() for alias in setting.declaration.aliases}
        chosen = {name: value for name, value in known.items() if name in names}
        servers = servers or os.environ.get("KOHORT_BOOTSTRAP_SERVER") or DEFAULT_BOOTSTRAP_SERVER
        return servers, chosen

    def check_reachable(self, limit_ms: int | None = None) -> None:
        """Check that the cluster can be reached, so that a command with a wrong address ends soon and names the cause.

        Args:
            limit_ms: how long to try; None: the value of --timeout, else `REACH_MS`.

        Raises:
            TimedOutError: the cluster can't be reached; the message names addresses and causes.
            KafkaError: any other failure, such as a refused login.
        """
        from kohort.client.net.health import check_reachable
        from kohort.client.net.thread_driver import ThreadClient
        from kohort.client.settings import ConnectionConfig, client_config

        servers, given = self.client_settings(ConnectionConfig)
        try:
            client = ThreadClient(client_config(ConnectionConfig, servers, given))
        except InvalidInputError as error:
            raise UsageError(str(error)) from error
        limit = limit_ms or self.timeout or REACH_MS
        try:
            client.call(check_reachable(client.cluster, limit))
        except TimedOutError as error:
            raise TimedOutError(f"{error.message}{self._origin()}") from error
        finally:
            client.close()

    def _origin(self) -> str:
        """Return a note for errors on where the cluster's address comes from; empty: --bootstrap-server names it."""
        if self.bootstrap_server:
            return ""
        if self.command_config and read_client_properties(self.command_config).get("bootstrap.servers"):
            return f"; the address is bootstrap.servers of {self.command_config}"
        if os.environ.get("KOHORT_BOOTSTRAP_SERVER"):
            return "; the address is $KOHORT_BOOTSTRAP_SERVER"
        return "; no --bootstrap-server is given, and this is the default"

    def admin(self, call_timeout_ms: int | None = None) -> Admin:
        """Return an administration client, which the caller closes.

        Args:
            call_ms: the timeout of its calls, instead of --timeout.

        Raises:
            KafkaError: the cluster can't be reached, or refuses the login.
        """
        from kohort.client.admin.admin import Admin

        return make_client(Admin, *self._reached(call_timeout_ms))

    def lag_reader(self, call_timeout_ms: int | None = None) -> LagReader:
        """Return a reader of lag, which the caller closes.

        Args:
            call_ms: the limit of a read, instead of --timeout.

        Raises:
            KafkaError: the cluster can't be reached, or refuses the login.
        """
        from kohort.lag import LagReader

        return make_client(LagReader, *self._reached(call_timeout_ms))

    def _reached(self, call_timeout_ms: int | None) -> tuple[str, dict[str, Any]]:
        """Check that the cluster can be reached; return its servers and the client's settings."""
        from kohort.client.settings import ConnectionConfig

        servers, given = self.client_settings(ConnectionConfig)
        given.setdefault("default.api.timeout.ms", self.call_timeout_ms if call_timeout_ms is None else call_timeout_ms)
        self.check_reachable(None if call_timeout_ms is None else min(REACH_MS, self.timeout or REACH_MS))
        return servers, given


def spark_checkpoints(given: tuple[str, ...]) -> ReadOthers:
    """Return the reader of the Spark checkpoints that --spark-checkpoint names, for `LagReader.read_others`.

    Raises:
        UsageError: a path is neither a folder nor in a store, two have one name, or a package is missing.
    """
    if not given:
        return dict
    from kohort.spark.checkpoint_lag import SparkCheckpoints

    try:
        return SparkCheckpoints(given)
    except InvalidInputError as error:
        raise UsageError(f"--spark-checkpoint: {error.message}") from error


def _known_to_any_client(given: Mapping[str, str]) -> Mapping[str, str]:
    """Check that each property is one of some client; the same file may serve consumers, producers and commands.

    Raises:
        UsageError: no client knows a property.
    """
    from kohort.client.producer.settings import ProducerConfig
    from kohort.client.settings import ConsumerConfig
    from kohort.settings.config import settings, unknown_key

    names = set()
    for setting in [*settings(ConsumerConfig).values(), *settings(ProducerConfig).values()]:
        names |= {setting.declaration.name, *setting.declaration.aliases}
    for key in given:
        if key not in names:
            raise UsageError(str(unknown_key(key, names)))
    return given


def make_client(make: Callable[..., Client], servers: str, given: Mapping[str, Any]) -> Client:
    """Call `make` with the servers and the properties, to create a client.

    Raises:
        UsageError: a property is unknown or invalid.
    """
    try:
        return make(servers, **given)
    except InvalidInputError as error:
        raise UsageError(error.message) from error


COLLECT_AFTER = (10_000, 1_000, 10)
"""Thresholds of Python's cyclic garbage collector. A full collection stops every thread, and takes 0.2 s over the reads
of 25,000 partitions; Python's own thresholds make one in each read, during which no page is sent. Reads have no cycles,
so that they are freed without it. These thresholds make one in many reads of that size."""


def reduce_garbage_collection() -> None:
    """Make Python's cyclic garbage collection rare, in a process that reads many groups again and again."""
    gc.set_threshold(*COLLECT_AFTER)


_CLIENT_LOGS = ("kohort.client", "kohort.lag")
"""Loggers whose lines are about connections as a client: those about listeners name properties of a broker."""


def log_to_stderr() -> None:
    """Send the log of a serving command to standard error.

    Lines that name a client property get a hint on where to set it.
    """
    from kohort.io import log_throttle

    def advice(logger: str, message: str) -> str:
        return property_location_hint(message) if logger.startswith(_CLIENT_LOGS) else ""

    log_throttle.log_to_stderr(advice=advice)


class EndingSignals:
    """A receiver of SIGTERM and SIGINT, which catches them from its creation on.

    The signal handler may call `put` of a queue, but not `set` of a `threading.Event`. It runs on the thread that waits
    for the event. If that thread holds the event's lock at the moment, the handler would wait for ever.
    """

    def __init__(self) -> None:
        self._arrived: SimpleQueue[int] = SimpleQueue()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda found, _: self._arrived.put(found))

    def wait(self) -> int:
        """Wait for a signal, and return its number."""
        while True:
            with suppress(Empty):
                return self._arrived.get(timeout=SIGNAL_CHECK_S)


def listen_address(listen: str) -> tuple[str, int]:
    """Return the host and port of `--listen`.

    Raises:
        UsageError: the text is no address.
    """
    try:
        return parse_listen_address(listen)
    except InvalidInputError as error:
        raise UsageError(f"--listen {listen}: write HOST:PORT") from error


def read_client_properties(path: Path) -> dict[str, str]:
    """Read a file of client properties, and return them by name.

    Raises:
        OSError: the file can't be read.
        UsageError: a line is no property.
    """
    path.open("rb").close()
    try:
        return read_properties(path)
    except InvalidInputError as error:
        raise UsageError(error.message) from error


def parse_set_options(pairs: tuple[str, ...]) -> dict[str, str]:
    """Parse options of the form key=value, and return the values by key.

    Raises:
        UsageError: an option is not key=value.
    """
    try:
        return parse_assignments(pairs)
    except InvalidInputError as error:
        raise UsageError(error.message) from error


def warn_secret_arguments(properties: Mapping[str, str], instead: str) -> None:
    """Warn on standard error if --set has a password, which other users of the machine can see; name another way."""
    names = [name for name in properties if is_secret(name) and not name.endswith(".url")]
    if names:
        print_note(f"--set {names[0]}: other users of this machine see a command's arguments; {instead}")


def check_names(kind: str, *names: str) -> None:
    """Check names of groups or topics before any request: an unset shell variable gives an empty one.

    Raises:
        UsageError: a name is empty, or its bytes are no UTF-8.
    """
    if not all(names):
        raise UsageError(f"a {kind}'s name has at least one character")
    for name in names:
        if not name.isprintable() and any("\ud800" <= char <= "\udfff" for char in name):
            raise UsageError(f"the bytes of the {kind}'s name {name!r} are no UTF-8: look at the shell's locale")


def print_errors(errors: Mapping[Any, KafkaError]) -> int:
    """Print each error once as a line on standard error, and where they are explained; return the exit code."""
    for text in dict.fromkeys(str(error) for error in errors.values()):
        print_note(f"kohort: {text}")
    if more := explain_hint(errors.values()):
        print_note(more)
    return FAILED if errors else DONE


def check_registry_option(url: str | None) -> None:
    """Check that the URL of --schema-registry has no login, which other users of the machine would see.

    Raises:
        UsageError: the URL has a login.
    """
    if url is not None and "@" in url:
        raise UsageError(
            "--schema-registry: other users of this machine see a command's arguments. Write a URL with a password as "
            "schema.registry.url into the file of --command-config"
        )


def parse_duration_option(option: str, text: str, longest_ms: int | None = None) -> int:
    """Parse the value of an option as a duration, and return it in milliseconds.

    Raises:
        UsageError: the text is no duration, or exceeds `longest_ms`; None: a week.
    """
    from kohort.lag.scaling import MAX_LAG_MAX_MS, parse_duration_ms

    try:
        return parse_duration_ms(text, MAX_LAG_MAX_MS if longest_ms is None else longest_ms)
    except InvalidInputError as error:
        raise UsageError(f"{option} {text}: {error.message}") from error


# -- The options of `kohort broker` and `kohort coordinator`


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SecurityOptions:
    """The options about the security of a listener."""

    tls: Path | None = None
    """A PEM file of the broker's private key and certificates: connections are encrypted."""

    client_ca: Path | None = None
    """A PEM file of authorities: clients must show a certificate of theirs. Needs --tls."""

    sasl: Path | None = None
    """A file of users, NAME=PASSWORD in each line: clients must log in, by SCRAM, or by PLAIN over TLS."""

    secure: Path | None = None
    """A folder for tests and demos, where a certificate, a user and clients' properties are made if missing: --tls and
    --sasl in one step."""

    insecure: Annotated[bool, Parameter(negative="")] = False
    """Serve everyone without a login, also at an address that other machines can reach."""

    def apply_to_listener(
        self, listen: str, properties: dict[str, Any], files: DevelopmentFiles | None
    ) -> tuple[str, dict[str, Any]]:
        """Return the listener and the properties with these options. `files` are those of --secure.

        Raises:
            UsageError: options do not fit together.
        """
        if self.client_ca is not None and self.tls is None:
            raise UsageError("--client-ca needs --tls: certificates are shown over TLS only")
        if files is not None and (self.tls or self.sasl):
            raise UsageError("--secure makes a certificate and a user: leave --tls and --sasl out")
        chosen: dict[str, Any] = {} if files is None else {**files.broker_properties()}
        if self.tls is not None:
            chosen["ssl.keystore.location"] = str(self.tls)
        if self.client_ca is not None:
            chosen |= {"ssl.truststore.location": str(self.client_ca), "ssl.client.auth": "required"}
        if self.sasl is not None:
            chosen["sasl.users.location"] = str(self.sasl)
            if self.tls is not None:
                chosen["sasl.enabled.mechanisms"] = "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN"
        if self.insecure:
            chosen["allow.insecure.listeners"] = "true"
        uses_tls = self.tls is not None or files is not None
        uses_sasl = self.sasl is not None or files is not None
        if (uses_tls or uses_sasl) and "://" not in listen:
            protocol = f"SASL_{'SSL' if uses_tls else 'PLAINTEXT'}" if uses_sasl else "SSL"
            if protocol == "SASL_SSL" and self.client_ca is not None:
                chosen[f"listener.name.{protocol.lower()}.ssl.client.auth"] = "required"
            listen = f"{protocol}://{listen}"
        return listen, {**chosen, **properties}


# -- The options of `kohort exporter` and `kohort scaler`


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """The options about who may connect to a server that only answers questions."""

    tls: Path | None = None
    """A PEM file of the server's private key and certificates: connections are encrypted. A renewed file is used
    without a restart."""

    client_ca: Path | None = None
    """A PEM file of authorities: clients must show a certificate of theirs. Needs --tls."""

    insecure: Annotated[bool, Parameter(negative="")] = False
    """Serve everyone without a certificate, also at an address that other machines can reach."""

    def certificates(self, server: str) -> ServerCertificates | None:
        """Return the certificates for TLS; None without TLS. `server` is the server's name in log lines.

        Raises:
            UsageError: options do not fit together, or a file can't be read or has something else.
        """
        if self.client_ca is not None and self.tls is None:
            raise UsageError("--client-ca needs --tls: certificates are shown over TLS only")
        from kohort.io.server_certificates import load_certificates

        try:
            return load_certificates(server, self.tls, self.client_ca)
        except InvalidInputError as error:
            raise UsageError(error.message) from error

    def check(self, host: str, port: int, server: str, consequence: str) -> None:
        """Check that the operator has said who may connect. The arguments are those of `ServerAccess.check`.

        Raises:
            UsageError: other machines reach the address, and nothing says who may connect.
        """
        try:
            ServerAccess(self.tls, self.client_ca, self.insecure).check(host, port, server, consequence)
        except InvalidInputError as error:
            raise UsageError(error.message) from error


# -- The options about metrics of `kohort broker`, `kohort coordinator` and `kohort region serve`


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class MetricsOptions:
    """The options about where Prometheus reads metrics, and who may."""

    metrics_listen: str | None = None
    """HOST:PORT where Prometheus reads the metrics of this process. An address that other machines can reach needs
    --metrics-tls with --metrics-client-ca, or --metrics-insecure."""

    metrics_tls: Path | None = None
    """A PEM file of a private key and certificates: metrics are encrypted. A renewed file is used without a restart."""

    metrics_client_ca: Path | None = None
    """A PEM file of authorities: who reads metrics must show a certificate of theirs. Needs --metrics-tls."""

    metrics_insecure: Annotated[bool, Parameter(negative="")] = False
    """Let everyone read metrics, also at an address that other machines can reach."""

    def check(self, server: str) -> None:
        """Check that the operator has said who may read metrics. `server` is the server's name in the error.

        Raises:
            UsageError: other machines reach the address, and nothing says who may connect; or it is invalid.
        """
        if self.metrics_listen is None:
            return
        try:
            host, port = parse_listen_address(self.metrics_listen)
            access = ServerAccess(self.metrics_tls, self.metrics_client_ca, self.metrics_insecure)
            access.check(host, port, server, READS_METRICS, METRICS_OPTIONS)
        except InvalidInputError as error:
            raise UsageError(error.message) from error

    def to_properties(self) -> dict[str, str]:
        """Return the options that are given as properties."""
        chosen = {
            "metrics.listen": self.metrics_listen,
            "metrics.tls.location": self.metrics_tls,
            "metrics.client.ca.location": self.metrics_client_ca,
            "allow.insecure.metrics": "true" if self.metrics_insecure else None,
        }
        return {name: str(value) for name, value in chosen.items() if value is not None}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ZooKeeperOptions:
    """The options about ZooKeeper."""

    zookeeper: str | None = None
    """HOST:PORT[,…]/chroot that shows this broker, its topics, and the owners and offsets of push groups. One broker
    uses the path alone; its data folder is authoritative."""

    zookeeper_config: Path | None = None
    """A file of properties for secure connections to ZooKeeper: zookeeper.auth.scheme, zookeeper.ssl.client.enable …"""

    def zookeeper_address(self) -> ZooKeeperAddress | None:
        """Return ZooKeeper's address and login; None if ZooKeeper is not used.

        Raises:
            UsageError: a line of the file is no property, or there is a file and no address.
            InvalidInputError: a property is unknown or invalid.
        """
        if self.zookeeper is None:
            if self.zookeeper_config is not None:
                raise UsageError("--zookeeper-config needs --zookeeper HOST:PORT[,…]/chroot")
            return None
        from kohort.cluster.zookeeper.security import zookeeper_address

        return zookeeper_address(
            self.zookeeper, read_client_properties(self.zookeeper_config) if self.zookeeper_config else {}
        )
