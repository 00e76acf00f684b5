"""A broker that stands still for longer than its members' sessions: the members that it could not hear stay."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from kohort import Broker
from kohort.errors import ErrorCode
from kohort.wire.groups import HeartbeatRequest
from tests.broker.group_member import Member, committed
from tests.broker.raw import RawClient, create_topic

SESSION_MS = 1_000
SETTINGS = {"offsets.topic.num.partitions": 1, "group.initial.rebalance.delay.ms": 0, "group.min.session.timeout.ms": 1}


def test_members_keep_their_partitions_when_the_broker_was_stopped_for_longer_than_their_sessions(
    tmp_path: Path,
) -> None:
    """Their heartbeats wait in its sockets, and are read before a session may end."""
    with Broker(tmp_path, SETTINGS) as broker, RawClient(broker.bootstrap_servers) as client:
        create_topic(client, "t")
        member = Member(client, "g", "t", session_ms=SESSION_MS)
        member.join()
        member.sync({member.id: b"all"})
        for offset in range(1, 4):
            os.kill(broker.pid, signal.SIGSTOP)
            client.send(HeartbeatRequest(group_id="g", generation_id=member.generation, member_id=member.id))
            time.sleep(2.5 * SESSION_MS / 1000)
            os.kill(broker.pid, signal.SIGCONT)
            assert client.receive().error_code == ErrorCode.NONE
            assert member.commit("t", 0, offset) == ErrorCode.NONE
            assert committed(client, "g", "t") == offset
        assert broker.meters()["group-completed-rebalance"] == 1
