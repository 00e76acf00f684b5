"""The settings of an application of the demo: one argument of its command line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """The settings of one application.

    Attributes:
        name: the application's name.
        folder: the folder of its batches and checkpoint.
        options: the options of its source.
        trigger_s: the time between batches.
        cores: the number of Spark's task threads.
        memory: the memory of Spark's driver.
    """

    name: str
    folder: str
    options: dict[str, str]
    trigger_s: float = 1.0
    cores: int = 1
    memory: str = "512m"

    @property
    def module(self) -> str:
        """The Python module to run."""
        return "kohort.demo.member"

    @property
    def views(self) -> tuple[str, ...]:
        """The group members of this application."""
        return (self.name,)

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class RegionMemberSettings(MemberSettings):
    """The settings of one application with queries of a region.

    Attributes:
        region: the region's name.
        servers: HOST:PORT of the cluster.
        client: further client properties.
        queries: the kind of place that each query writes to, by the query's name; each query is a member.
        faltering: the query whose sink fails now and then.
        checkpoint_every: the interval between sequences.
    """

    region: str = ""
    servers: str = ""
    client: dict[str, str] = field(default_factory=dict)
    queries: dict[str, str] = field(default_factory=dict)
    faltering: str = ""
    checkpoint_every: str = "2s"

    @property
    def module(self) -> str:
        """The Python module to run."""
        return "kohort.demo.region_member"

    @property
    def views(self) -> tuple[str, ...]:
        """The group members of this application."""
        return tuple(self.queries)
