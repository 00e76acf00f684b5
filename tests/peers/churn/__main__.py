"""Churns a group of real clients (`make churn`).

`python -m tests.peers.churn PLAN [--minutes 10] [--kafka] [--json]`
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from tests.peers.churn import clients
from tests.peers.churn.check import violations
from tests.peers.churn.places import Apache, Ours
from tests.peers.churn.plans import PLANS
from tests.peers.churn.report import metrics, show
from tests.peers.churn.run import Pace, Run
from tests.peers.churn.story import read
from tests.peers.peers import PeerUnavailable


def main() -> int:
    """Runs one plan; 1 when a property was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.peers.churn", description=__doc__)
    parser.add_argument("plan", choices=PLANS, nargs="?", default="classic-range")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long members come and go")
    parser.add_argument("--kafka", action="store_true", help="on Apache Kafka instead of our broker")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the broker")
    parser.add_argument("--without", action="append", default=[], metavar="CLIENT", help="leave a client out")
    parser.add_argument("--records", type=float, default=200, help="produced per second")
    parser.add_argument("--events", type=float, nargs=2, default=(1.0, 3.0), help="seconds between two events")
    parser.add_argument("--outages", type=float, default=0, help="kill the broker every so many seconds")
    parser.add_argument("--seed", type=int, default=0, help="of the events")
    parser.add_argument("--folder", type=Path, help="keep logs and data here")
    parser.add_argument("--json", action="store_true", help="print JSON")
    asked = parser.parse_args()
    console, aside = Console(width=None if sys.stdout.isatty() else 150), Console(stderr=True)
    plan = PLANS[asked.plan]
    absent = set(asked.without)
    for kind in plan.kinds:
        try:
            clients.command(kind.client)
        except PeerUnavailable as error:
            aside.print(f"without {kind.client}: {error}")
            absent.add(kind.client)
    settings = {**plan.broker_settings, **dict(word.split("=", 1) for word in asked.set)}
    pace = Pace(asked.minutes * 60, tuple(asked.events), asked.records, asked.outages, asked.seed)
    with tempfile.TemporaryDirectory(prefix="kohort-churn-") as temporary:
        folder = asked.folder or Path(temporary)
        (folder / "data").mkdir(parents=True, exist_ok=True)
        with (Apache if asked.kafka else Ours)(folder / "data", settings) as place:
            log = (folder / "driver.txt").open("w", buffering=1)
            with log:
                run = Run(plan, pace, place, folder, lambda line: print(line, file=log), frozenset(absent))
                reading = read(run.run())
    report = metrics(reading, violations(reading))
    where = "Apache Kafka" if asked.kafka else "kohort"
    if asked.json:
        print(json.dumps({"plan": plan.name, "broker": where, "settings": asked.set, **report}))
    else:
        show(report, f"{plan.name} on {where} {' '.join(asked.set)}", console)
    return 1 if report["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
