"""A process that is nothing but a candidate: it listens, goes through a service, and says what the service says.

    python -m tests.cluster.coordination_process zookeeper 127.0.0.1:2181/path 1 6000
    python -m tests.cluster.coordination_process group 127.0.0.1:9092/a-group 1 6000

Each line on standard output is what holds now. SIGTERM has it retire.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import uuid

from kohort.client.settings import ConnectionConfig
from kohort.cluster.coordination.group_service import GroupCoordination
from kohort.cluster.coordination.peers import Peers
from kohort.cluster.coordination.placement import Candidate
from kohort.cluster.coordination.service import CoordinationService
from kohort.cluster.zookeeper.service import ZooKeeperCoordination

SHARDS = 12
ALIVE_S = 0.05


def service_at(kind: str, address: str, session_ms: int) -> CoordinationService:
    """The service by its kind; a group's name stands behind the servers."""
    if kind == "zookeeper":
        return ZooKeeperCoordination(address, session_ms)
    servers, _, group = address.partition("/")
    return GroupCoordination(
        ConnectionConfig(bootstrap_servers=tuple(servers.split(","))), group, session_ms=session_ms
    )


async def _listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(1024):
        pass
    writer.close()


async def main(kind: str, address: str, number: int, session_ms: int) -> None:
    """Until SIGTERM."""
    server = await asyncio.start_server(_listen, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    me = Candidate(number, uuid.uuid4().hex, host, port)
    service = service_at(kind, address, session_ms)
    peers = Peers(service, me)

    def report() -> None:
        peers.watch_candidates()
        placement = service.placement
        if placement is not None:
            owners, incarnations = placement.owners, [candidate.incarnation for candidate in placement.candidates]
            print(json.dumps([service.is_leader, placement.elected, owners, incarnations]), flush=True)

    async def turn() -> None:
        while True:
            service.report_loop_alive()
            await asyncio.sleep(ALIVE_S)

    service.on_changes(report)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await service.open(me, SHARDS)
    turning = asyncio.create_task(turn())
    report()
    await stop.wait()
    await service.hand_over_and_leave()
    turning.cancel()
    await peers.close()
    server.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
