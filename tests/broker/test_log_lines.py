"""Log lines that clients cause are bounded, and the number of omitted lines is logged."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from kohort import Broker
from kohort.io.log_throttle import KIND_BURST, KIND_PAUSE_S, LEVEL_BURST, LINE_CHARS_MAX, LogThrottle
from kohort.wire.discovery import MetadataRequest
from tests.broker.raw import RawClient

log = logging.getLogger("kohort.broker")


class Clock:
    """Time that stands still."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lines(clock: Clock, caplog: pytest.LogCaptureFixture) -> Iterator[LogThrottle]:
    caplog.set_level(logging.DEBUG)
    lines = LogThrottle(clock)
    lines.install()
    yield lines
    lines.uninstall()


def test_a_kind_has_its_share_and_one_more_after_each_pause(
    lines: LogThrottle, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(KIND_BURST + 70):
        log.warning("bad frame from %d", number)
    assert len(caplog.messages) == KIND_BURST
    log.warning("something else")
    assert caplog.messages[-1] == "something else"
    clock.now += 3 * KIND_PAUSE_S
    for number in range(9):
        log.warning("bad frame from %d", number)
    assert len(caplog.messages) == KIND_BURST + 1 + 3
    lines.report_suppressed()
    assert "76 of 'bad frame from %d'" in caplog.messages[-1]
    lines.report_suppressed()
    assert len(caplog.messages) == KIND_BURST + 5, "said once"


def test_groups_do_not_use_up_each_others_share(lines: LogThrottle, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(KIND_BURST + 1):
        log.info("group %s: %s", "busy", "rebalances", extra={"group_id": "busy"})
    log.info("group %s: %s", "quiet", "is empty", extra={"group_id": "quiet"})
    assert len(caplog.messages) == KIND_BURST + 1
    assert caplog.messages[-1] == "group quiet: is empty"


def test_all_lines_of_a_level_together_are_bounded_and_errors_have_room_of_their_own(
    lines: LogThrottle, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3 * LEVEL_BURST):
        line = f"kind {number}"
        log.warning(line)
    assert len(caplog.messages) == LEVEL_BURST
    log.error("the disk failed")
    assert caplog.messages[-1] == "the disk failed"
    lines.report_suppressed()
    assert f"{2 * LEVEL_BURST - 5} others" in caplog.messages[-1]


def test_a_name_can_not_make_a_line_of_its_own_or_a_long_one(
    lines: LogThrottle, caplog: pytest.LogCaptureFixture
) -> None:
    log.info("hello %s", "a\n2026-01-01 ERROR forged\x1b[2J")
    assert caplog.messages[-1] == r"hello a\n2026-01-01 ERROR forged\x1b[2J"
    log.info("hello %s", "x" * 30_000)
    assert len(caplog.messages[-1]) < LINE_CHARS_MAX + 50
    assert "29006 characters more" in caplog.messages[-1]


def test_a_storm_of_bad_frames_does_not_fill_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Broker(tmp_path / "data") as broker:
        for _ in range(KIND_BURST + 150):
            with RawClient(broker.bootstrap_servers) as bad:
                bad.sock.sendall(struct.pack(">i", -1))
                assert bad.closed()
        with RawClient(broker.bootstrap_servers) as client:
            assert client.ask(MetadataRequest(topics=[])).brokers
    said = capfd.readouterr().err.splitlines()
    warned = [line for line in said if "closing the connection from" in line and "left out" not in line]
    assert KIND_BURST <= len(warned) < KIND_BURST + 20
    left_out = [line for line in said if "left out of this log" in line]
    assert len(left_out) == 1
    assert f"{KIND_BURST + 150 - len(warned)} of 'closing the connection from" in left_out[0]
