"""Apache Flink: a job on a mini cluster, exactly once, that begins again from its newest checkpoint."""

from __future__ import annotations

from frameworks.builds import JAVA_OPTIONS, LOGGING, java_command
from frameworks.framework import INPUT, OUTPUT, Framework, Site

VERSION = "2.2.1"
CONNECTOR_VERSION = "5.0.0-2.2"
LIBRARIES = (
    *(f"org.apache.flink:{name}:{VERSION}" for name in ("flink-streaming-java", "flink-clients")),
    f"org.apache.flink:flink-connector-base:{VERSION}",
    f"org.apache.flink:flink-connector-kafka:{CONNECTOR_VERSION}",
)
OPTIONS = ("-Xmx400m", *JAVA_OPTIONS[1:])
"""A mini cluster has its network buffers and managed memory beside the heap of a client."""


class Flink(Framework):
    """A job of two parallel tasks in one process, with job manager, task manager and state."""

    name = "flink"
    title = "Flink"
    version = f"{VERSION}, connector {CONNECTOR_VERSION}"
    exactly_once = True
    story = "`KafkaSource`, count by key in checkpointed state, `KafkaSink`; a mini cluster in one process"
    settings = (
        "`DeliveryGuarantee.EXACTLY_ONCE`, `execution.checkpointing.interval=500 ms` with checkpoints on the disk, "
        "`execution.state-recovery.path` the newest of them, `transaction.timeout.ms=60000`"
    )
    members = 1

    def prepare(self, site: Site) -> None:
        """Compile the program, and create the topics."""
        self._java = java_command("FlinkForward", [*LIBRARIES, *LOGGING], OPTIONS)
        super().prepare(site)

    def command(self, site: Site, member: int) -> list[str]:
        checkpoints = str(site.member_folder(member) / "checkpoints")
        return [*self._java, site.servers, INPUT, OUTPUT, checkpoints, "frameworks-flink"]
