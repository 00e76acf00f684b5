"""Runner for unchanged PySpark programs: `python -m kohort.spark JOB ARGS` runs `format("kafka")` on kohort.

It lets users try kohort without changing the job. It works with `spark-submit` too, when this file is given in place of
the job. When the job ends, a summary goes to standard error. It says what was replaced, how many records the streaming
queries read, and the offsets of their groups.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from kohort.errors import KafkaError

USAGE = "usage: python -m kohort.spark JOB.py [ARGUMENT...]"
ACCOUNT_MS = 5_000
"""Time limit for reading each group's offsets for the summary."""


def main() -> None:
    """Run the job as `__main__`, with its own arguments and its own folder first in the module path."""
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        say(USAGE if len(sys.argv) > 1 else f"{USAGE}: name a program to run")
        sys.exit(0 if len(sys.argv) > 1 else 2)
    job = Path(sys.argv[1])
    if not job.is_file():
        say(f"{job}: there is no such program")
        sys.exit(2)
    from kohort.spark.in_place_of_kafka import cover_everything

    cover_everything()
    sys.argv = sys.argv[1:]
    sys.path[0] = str(job.resolve().parent)
    try:
        runpy.run_path(str(job), run_name="__main__")
    finally:
        say(account())


def say(text: str) -> None:
    """Write a line to standard error; standard output belongs to the job."""
    sys.stderr.write(text + "\n")


def account() -> str:
    """Return the job's summary: which uses of Spark's Kafka source ran on kohort, and its groups' committed offsets."""
    from kohort.spark.driver_server import rows_read
    from kohort.spark.in_place_of_kafka import CHANGES

    if not CHANGES.counts:
        return 'kohort: the job used no format("kafka"); nothing was changed'
    lines = ["kohort ran this job in place of Spark's Kafka source and sink:"]
    lines += [f"  {count} x {what}" for what, count in sorted(CHANGES.counts.items())]
    if rows := rows_read():
        lines.append(f"  streaming queries read {rows} records")
    for group, servers in sorted(CHANGES.groups.items()):
        lines.append(f"  group {group}: {committed(group, servers)}")
    if not CHANGES.groups:
        lines.append(
            "  no streaming query names a group.id: nothing is committed, offsets are in the checkpoints alone"
        )
    return "\n".join(lines)


def committed(group: str, servers: str) -> str:
    """Return a group's committed offsets as text, or why they can't be read."""
    from kohort.client.admin.admin import Admin

    try:
        with Admin(servers, default_api_timeout_ms=ACCOUNT_MS) as admin:
            offsets = admin.list_consumer_group_offsets(group).all()
    except KafkaError as error:
        return f"its offsets can't be read: {error}"
    texts = [f"{partition} at {offset.offset}" for partition, offset in sorted(offsets.items()) if offset is not None]
    return ", ".join(texts) or "has no committed offsets"


if __name__ == "__main__":
    main()
