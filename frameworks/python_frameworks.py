"""Python frameworks, each in an environment of its own with pinned packages."""

from __future__ import annotations

from frameworks.builds import PROGRAMS, pinned_version, python_environment
from frameworks.framework import INPUT, OUTPUT, Framework, Site


class PythonFramework(Framework):
    """A framework whose members run a Python program: `PROGRAM SERVERS INPUT OUTPUT FOLDER`.

    Attributes:
        pins: name of the environment.
        program: file in `programs/`.
    """

    pins: str
    program: str

    def prepare(self, site: Site) -> None:
        """Make the environment, and create the topics."""
        self._python = python_environment(self.pins)
        super().prepare(site)

    def command(self, site: Site, member: int) -> list[str]:
        folder = str(site.member_folder(member))
        return [str(self._python), "-W", "ignore", str(PROGRAMS / self.program), site.servers, INPUT, OUTPUT, folder]


class FastStreamAiokafka(PythonFramework):
    """FastStream on aiokafka."""

    name = "faststream"
    title = "FastStream on aiokafka"
    version = f"{pinned_version('faststream', 'faststream')} on {pinned_version('faststream', 'aiokafka')}"
    exactly_once = False
    pins, program = "faststream", "faststream_app.py"
    story = "a subscriber that publishes each record on; two applications"
    settings = "`ack_policy=NACK_ON_ERROR`, `enable_idempotence=True`, `session_timeout_ms=6000`"


class FastStreamConfluent(PythonFramework):
    """FastStream on confluent-kafka."""

    name = "faststream-confluent"
    title = "FastStream on confluent-kafka"
    version = f"{pinned_version('faststream', 'faststream')} on {pinned_version('faststream', 'confluent-kafka')}"
    exactly_once = False
    pins, program = "faststream", "faststream_confluent_app.py"
    story = "a subscriber that publishes each record on; two applications"
    settings = (
        "`ack_policy=NACK_ON_ERROR`, `enable.idempotence=true`, `session_timeout_ms=6000`, "
        "`reconnect.backoff.max.ms=1000`"
    )


class QuixStreams(PythonFramework):
    """Quix Streams, exactly once, with state."""

    name = "quix"
    title = "Quix Streams"
    version = pinned_version("quix", "quixstreams")
    exactly_once = True
    pins, program = "quix", "quix_app.py"
    story = "count by key in RocksDB with its changelog topic; two applications"
    settings = (
        '`processing_guarantee="exactly-once"`, `commit_interval=0.5`, '
        "`session.timeout.ms=6000`, `reconnect.backoff.max.ms=1000`"
    )


class Faust(PythonFramework):
    """Faust, in the fork that is kept up."""

    name = "faust"
    title = "Faust (faust-streaming)"
    version = f"{pinned_version('faust', 'faust-streaming')} on aiokafka {pinned_version('faust', 'aiokafka')}"
    exactly_once = False
    pins, program = "faust", "faust_app.py"
    story = "an agent that sends each record on; two workers"
    settings = "`topic_replication_factor=1`, `broker_session_timeout=6`, `broker_commit_interval=0.5`"


class AiokafkaProgram(PythonFramework):
    """aiokafka without a framework: send, then commit."""

    name = "aiokafka"
    title = "aiokafka"
    version = pinned_version("faststream", "aiokafka")
    exactly_once = False
    pins, program = "faststream", "aiokafka_app.py"
    story = "consume, produce, commit; two programs"
    settings = "`enable_idempotence=True`, `session_timeout_ms=6000`"


class ConfluentProgram(PythonFramework):
    """confluent-kafka without a framework: transactions with offsets."""

    name = "confluent"
    title = "confluent-kafka"
    version = pinned_version("faststream", "confluent-kafka")
    exactly_once = True
    pins, program = "faststream", "confluent_app.py"
    story = "consume, produce and send offsets in transactions; two programs"
    settings = (
        "`transactional.id` of each member, `session.timeout.ms=6000`, `reconnect.backoff.max.ms=1000`; "
        "the program ends when a transaction takes 20 s"
    )
