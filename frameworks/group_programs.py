"""Python programs in groups without much of a framework: kafka-python, Arroyo, kstreams."""

from __future__ import annotations

from frameworks.builds import pinned_version
from frameworks.framework import Framework
from frameworks.python_frameworks import PythonFramework


class KafkaPythonProgram(PythonFramework):
    """kafka-python: transactions with offsets."""

    name = "kafka-python"
    title = "kafka-python"
    version = pinned_version("kafka-python", "kafka-python")
    exactly_once = True
    pins, program = "kafka-python", "kafka_python_app.py"
    story = "consume, produce and send offsets in transactions; two programs"
    settings = "`transactional_id` of each member, `transaction_timeout_ms=10000`, `session_timeout_ms=6000`"


class Arroyo(PythonFramework):
    """Arroyo: a stream processor on confluent-kafka."""

    name = "arroyo"
    title = "Arroyo (sentry-arroyo)"
    version = f"{pinned_version('arroyo', 'sentry-arroyo')} on {pinned_version('arroyo', 'confluent-kafka')}"
    exactly_once = False
    pins, program = "arroyo", "arroyo_app.py"
    story = "strategies `Produce` and `CommitOffsets`; two processors"
    settings = (
        "`enable.idempotence=true`, `partitioner=murmur2_random`, `session.timeout.ms=6000`, "
        "`reconnect.backoff.max.ms=1000`"
    )


class Kstreams(PythonFramework):
    """kstreams: a stream engine on aiokafka."""

    name = "kstreams"
    title = "kstreams"
    version = f"{pinned_version('kstreams', 'kstreams')} on aiokafka {pinned_version('kstreams', 'aiokafka')}"
    exactly_once = False
    pins, program = "kstreams", "kstreams_app.py"
    story = "a stream that sends each record, then commits; two engines"
    settings = "`enable_auto_commit=False`, `session_timeout_ms=6000`"


GROUP_PROGRAMS: tuple[type[Framework], ...] = (KafkaPythonProgram, Arroyo, Kstreams)
