"""MirrorMaker 2: from a kohort broker of its own into the broker of the run, exactly once."""

from __future__ import annotations

from frameworks.brokers import KohortProcess
from frameworks.builds import JAVA_OPTIONS, LOGGING, java_libraries
from frameworks.framework import INPUT, PARTITIONS, Framework, Site, TopicInput, TopicOutput
from kohort import Admin
from kohort.client.admin.values import NewTopic
from kohort.io.java import java_path, log4j_properties

VERSION = "4.3.1"
LIBRARIES = tuple(f"org.apache.kafka:{name}:{VERSION}" for name in ("connect-runtime", "connect-mirror"))
COPIED = f"source.{INPUT}"
"""The topic's name at the target: the source's alias comes first."""


class MirrorMaker(Framework):
    """MirrorMaker 2 in dedicated mode. The source is a kohort broker that lives on; the target is killed."""

    name = "mirror"
    title = "MirrorMaker 2"
    version = VERSION
    exactly_once = True
    story = "a topic of another kohort broker into this one, `exactly.once.source.support=enabled`; one process"
    settings = "replication factors 1, `offset.flush.interval.ms=500`, `session.timeout.ms=6000`"
    members = 1

    def prepare(self, site: Site) -> None:
        """Resolve the jars, start the source, and create the topics."""
        jars = java_libraries("mirror", [*LIBRARIES, *LOGGING])
        (site.folder / "log4j2.properties").write_text(log4j_properties())
        logging = f"-Dlog4j2.configurationFile={site.folder / 'log4j2.properties'}"
        main = "org.apache.kafka.connect.mirror.MirrorMaker"
        properties = site.folder / "mirror.properties"
        self._command = [str(java_path()), *JAVA_OPTIONS, logging, "-cp", f"{jars}/*", main, str(properties)]
        folder = site.folder / "source"
        folder.mkdir()
        self._source = KohortProcess(folder)
        for servers, topic in ((self._source.bootstrap_servers, INPUT), (site.servers, COPIED)):
            with Admin(servers) as admin:
                admin.create_topics([NewTopic(topic, PARTITIONS)]).all()
        properties.write_text(self._properties(site))

    def command(self, site: Site, member: int) -> list[str]:
        return self._command

    def open_input(self, site: Site) -> TopicInput:
        return TopicInput(self._source.bootstrap_servers)

    def open_output(self, site: Site) -> TopicOutput:
        return TopicOutput(site.servers, COPIED)

    def close(self) -> None:
        """End the source."""
        if hasattr(self, "_source"):
            self._source.close()

    def _properties(self, site: Site) -> str:
        lines = {
            "clusters": "source, target",
            "source.bootstrap.servers": self._source.bootstrap_servers,
            "target.bootstrap.servers": site.servers,
            "source->target.enabled": "true",
            "source->target.topics": INPUT,
            "target->source.enabled": "false",
            "target.exactly.once.source.support": "enabled",
            "target.scheduled.rebalance.max.delay.ms": "0",
            "target.offset.flush.interval.ms": "500",
            "target.session.timeout.ms": "6000",
            "target.heartbeat.interval.ms": "1500",
            "tasks.max": "2",
            "replication.factor": "1",
        }
        for topic in ("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic"):
            lines[f"{topic}.replication.factor"] = "1"
        for topic in ("config.storage", "offset.storage", "status.storage"):
            lines[f"{topic}.replication.factor"] = "1"
        return "".join(f"{key} = {value}\n" for key, value in lines.items())
