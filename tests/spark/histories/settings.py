"""Settings of one query run, as JSON from the process that plays a history to the one that runs the query."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal, Self

Trigger = Literal["interval", "availableNow", "once"]
How = Literal["kill", "stop"]


@dataclass(frozen=True, slots=True)
class Life:
    """One run of a query: from its start to its end, whatever ends it.

    Attributes:
        options: of the source.
        folder: of the application; holds its checkpoints and its story.
        checkpoint: the number of the checkpoint that it starts with.
        number: of this run, counted over all of the application's.
        ends_at: the call at which it ends itself, counted over all calls; 0: it is ended from outside, or ends by
            itself.
        ends_how: by SIGKILL, or by SIGTERM as Spark sends it.
        pauses: at which call it is stopped by SIGSTOP; whoever plays the history wakes it.
        fails_at: which write of its sink fails, from 1; 0: none.
        fails_with: how much of the batch the sink has written by then: 0.0, 0.5 or 1.0.
        slow_at: which write takes `slow_ms`; the others take `sink_ms`.
        look_ms: how long a look at the partitions' ends takes, in which the group may go on.
        twice: every task is read twice, as a speculative or repeated attempt does; both must give the same.
        mutant: a fault to plant in the source.
    """

    options: dict[str, str]
    folder: str
    checkpoint: int
    number: int
    trigger: Trigger = "interval"
    interval_ms: int = 5
    ends_at: int = 0
    ends_how: How = "kill"
    pauses: tuple[int, ...] = ()
    fails_at: int = 0
    fails_with: float = 0.0
    slow_at: int = 0
    slow_ms: int = 0
    sink_ms: int = 0
    look_ms: int = 0
    twice: bool = False
    mutant: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        found = json.loads(text)
        return cls(**{**found, "pauses": tuple(found["pauses"])})
