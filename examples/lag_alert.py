"""Says which groups do not keep up, and why: `python lag_alert.py SERVERS [SECONDS [GROUP ...]]`. For cron, or a probe.

Exit code 0: every group keeps up. Exit code 1: records of a group have waited for longer than SECONDS (60), or its
status is worse than WARN. Two reads, 5 s apart, tell a group that works from one that stands still.
"""

import sys
import time

from kohort.lag import GroupLag, LagReader, LagStatus

servers = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
limit_ms = 1000 * float(sys.argv[2]) if len(sys.argv) > 2 else 60_000.0
groups = sys.argv[3:] or None


def complaint(group: GroupLag) -> str:
    """Return the faults of a group; empty: it has none."""
    late = [part for part in group.known_partitions if (part.time_lag_ms or 0) > limit_ms]
    if not late and group.status <= LagStatus.WARN:
        return ""
    worst = max(late or group.partitions, key=lambda part: (part.status, part.time_lag_ms or 0))
    waited = (worst.time_lag_ms or 0) / 1000
    return (
        f"{group.description.group_id} is {group.status.name}: {group.sum_lag} records are unread; the oldest, of "
        f"{worst.partition}, has waited for {waited:.0f} s ({worst.cause or 'no cause known'})"
    )


with LagReader(servers) as reader:
    reader.read(groups)
    time.sleep(5)
    report = reader.read(groups)
complaints = [text for group in report.groups.values() if (text := complaint(group))]
complaints += [f"{name} can't be read: {error}" for name, error in report.errors.items()]
for text in complaints:
    print(text)
sys.exit(1 if complaints else 0)
