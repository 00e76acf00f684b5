"""What one member of the demo is told: one argument of its command line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """What one member is to do.

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

    def to_json(self) -> str:
        return json.dumps(asdict(self))
