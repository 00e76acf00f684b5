"""A signal that interrupts no wait is handled all the same: one that comes just before it, or on another thread."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from kohort import Broker, Consumer
from kohort.cli.common import EndingSignals
from kohort.region import Region
from tests.support.waiting import LAST_RESORT

pytestmark = LAST_RESORT


class Handled(Exception):
    """Raised by the handler."""


@pytest.fixture
def on_another_thread() -> Iterator[None]:
    """A second from now SIGALRM comes on a thread that is not the main one, whose handler raises in the main one."""

    def raises(*_: object) -> None:
        raise Handled

    before = signal.signal(signal.SIGALRM, raises)

    def sends() -> None:
        time.sleep(1)
        signal.pthread_kill(threading.get_ident(), signal.SIGALRM)
        time.sleep(5)

    thread = threading.Thread(target=sends)
    thread.start()
    yield
    thread.join()
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with Broker() as broker:
        yield broker.bootstrap_servers


def commands(_: str) -> None:
    EndingSignals().wait()


def poll(servers: str) -> None:
    with Consumer(servers, group_id="g") as consumer:
        consumer.subscribe(["nothing"])
        consumer.poll(60_000)


def iteration(servers: str) -> None:
    with Consumer(servers, group_id="g2") as consumer:
        consumer.subscribe(["nothing"])
        next(iter(consumer))


def tables(servers: str) -> None:
    with (
        Region("r", servers) as region,
        region.consumer("m", group_id="g3", topics=["nothing"], into=None) as member,
    ):
        next(iter(member.tables()))


@pytest.mark.parametrize("wait", [commands, poll, iteration, tables], ids=lambda wait: str(wait.__name__))
@pytest.mark.usefixtures("on_another_thread")
def test_signal_that_interrupts_no_wait_is_handled(wait: Callable[[str], None], servers: str) -> None:
    started = time.monotonic()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with pytest.raises(Handled):
            wait(servers)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert time.monotonic() - started < 30, "the poll of a minute ended by itself"
