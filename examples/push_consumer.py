"""A member of a push group that logs each partition that it gets and loses: `python push_consumer.py SERVERS [NAME]`.

In the push protocol the coordinator sends a member its partitions at once, and no heartbeat asks for them. Start the
program twice and kill one: the other has its partitions within milliseconds. Ctrl-C or SIGTERM ends it.

Jobs for it: `seq 10 | kohort produce jobs`.
"""

import signal
import sys

from kohort import Consumer, RebalanceListener, TopicPartition

servers = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
name = sys.argv[2] if len(sys.argv) > 2 else "member"


class Log(RebalanceListener):
    """Prints each change."""

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        print(f"{name} has", *sorted(map(str, partitions)), flush=True)

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        print(f"{name} gives up", *sorted(map(str, partitions)), flush=True)

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        print(f"{name} has lost", *sorted(map(str, partitions)), flush=True)


ended = False


def end(*_: object) -> None:
    global ended
    ended = True


for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, end)
with Consumer(servers, group_id="pushed", group_protocol="push", auto_offset_reset="earliest") as consumer:
    consumer.subscribe(["jobs"], listener=Log())
    while not ended:
        for record in consumer.poll(timeout_ms=500):
            print(f"{name} reads", record.value.decode(), flush=True)
