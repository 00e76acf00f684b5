"""What an application of the demo is told: one argument of its command line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """What one application is to do.

    Attributes:
        options: of the source.
        folder: where the batches and the checkpoint go.
        trigger_s: time between batches.
        cores: Spark's task threads.
    """

    name: str
    folder: str
    options: dict[str, str]
    trigger_s: float = 1.0
    cores: int = 1
    memory: str = "512m"

    @property
    def module(self) -> str:
        """The program."""
        return "kohort.demo.member"

    @property
    def views(self) -> tuple[str, ...]:
        """Its members of the group."""
        return (self.name,)

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class RegionMemberSettings(MemberSettings):
    """What one application with queries of a region is to do.

    Attributes:
        region: its name.
        servers: HOST:PORT of the cluster.
        client: how it is reached, beside that.
        queries: the kind of place that each writes to, by its name; each is a member.
        faltering: the query whose sink fails now and then.
        checkpoint_every: how often a sequence is begun.
    """

    region: str = ""
    servers: str = ""
    client: dict[str, str] = field(default_factory=dict)
    queries: dict[str, str] = field(default_factory=dict)
    faltering: str = ""
    checkpoint_every: str = "2s"

    @property
    def module(self) -> str:
        """The program."""
        return "kohort.demo.region_member"

    @property
    def views(self) -> tuple[str, ...]:
        """Its members of the group."""
        return tuple(self.queries)
