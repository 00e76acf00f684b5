"""Ten members of a region read at an even rate; then all are asked for a checkpoint, or go back.

`python -m bench.runners.region_downtime HOW SERVERS TOPIC`; HOW is `checkpoint` or `reset`. Prints how long the
slowest member stood still, and when the rate was back at 90 %.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
import uuid

from kohort.region import Region, RegionConsumer

MEMBERS, BEFORE_S, AFTER_S = 10, 4.0, 8.0
WINDOW_S, STEP_S, BACK = 0.5, 0.05, 0.9
WORK_S = 0.05
"""What an application does with a piece: the machine has room, so that the rate says when members are back."""


class Member:
    """A member that reads, and records when it got how much."""

    def __init__(self, region: Region, name: str, topic: str) -> None:
        self.got: list[tuple[float, int]] = []
        self.consumer: RegionConsumer = region.consumer(
            name, group_id=region.name, topics=[topic], start="beginning", max_poll_records=50
        )
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        for table in self.consumer.tables():
            self.got.append((time.perf_counter(), table.num_rows))
            time.sleep(WORK_S)


def _rows(members: list[Member], since_s: float, until_s: float) -> int:
    return sum(rows for member in members for at_s, rows in member.got if since_s <= at_s < until_s)


def _downtime(member: Member, since_s: float, until_s: float) -> float:
    times = [at_s for at_s, _ in member.got if since_s - 1 <= at_s < until_s] + [until_s]
    return max(later - at_s for at_s, later in itertools.pairwise(times))


def measure(how: str, servers: str, topic: str) -> dict[str, float]:
    """One run."""
    name = f"bench-{uuid.uuid4().hex[:12]}"
    with Region(name, servers, checkpoint_every=None) as region:
        members = [Member(region, f"m{number}", topic) for number in range(MEMBERS)]
        while not all(len(member.got) > 10 and member.consumer.metrics.partitions for member in members):
            time.sleep(0.1)
        region.checkpoint()
        while not all(member.consumer.sequence > 0 for member in members):
            time.sleep(0.05)
        time.sleep(BEFORE_S)
        asked_s = time.perf_counter()
        usual = _rows(members, asked_s - BEFORE_S + 1, asked_s) / (BEFORE_S - 1)
        region.checkpoint() if how == "checkpoint" else region.reset()
        time.sleep(AFTER_S)
        ended_s = asked_s + AFTER_S - 0.5
        stood_s = max(_downtime(member, asked_s, ended_s) for member in members)
        steps = [asked_s + step * STEP_S for step in range(int((AFTER_S - WINDOW_S) / STEP_S))]
        slow = [_rows(members, at_s, at_s + WINDOW_S) < BACK * usual * WINDOW_S for at_s in steps]
        stood = slow.index(True) if True in slow else 0
        back = slow.index(False, stood) if False in slow[stood:] else len(steps)
        back_s = back * STEP_S + WINDOW_S if stood < back else 0.0
        for member in members:
            threading.Thread(target=member.consumer.close).start()
    return {"amount": 1, "seconds": stood_s, "back at 90 %, s": back_s, "rows/s before": usual}


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:4])))
