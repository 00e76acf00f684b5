"""The pytest plugin: a broker with real groups for each test that asks for one.

Installed with the package, so a test only names the fixture:

    def test_replay(kohort_broker):
        with Producer(kohort_broker.bootstrap_servers) as producer:
            ...

    @pytest.mark.kohort_broker(config={"num.partitions": 6})
    def test_with_six_partitions(kohort_broker): ...

A broker can be made to fail on purpose: `kohort_broker.faults.add(Fault(...))` fails, delays, drops or holds requests
chosen by api, group, client and occurrence; `kohort_broker.kill()` and `.restart()` are a crash and the way back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # the plugin is imported by every pytest run; the broker only by tests that use it
    from kohort.broker import Broker
    from kohort.broker.fault import Fault

__all__ = ["Fault", "kohort_broker", "kohort_broker_factory", "kohort_shared_broker"]

MARKER = "kohort_broker(config): broker properties, under Kafka's names, for the fixture kohort_broker"


def __getattr__(name: str) -> Any:
    """`Fault` is imported when it is first asked for."""
    if name != "Fault":
        raise AttributeError(f"module 'kohort.testing' has no attribute {name!r}")
    from kohort.broker.fault import Fault

    return Fault


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def kohort_broker_factory(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Starts any number of brokers, each with its own data folder; all end with the test.

    Call it with `config=` (a mapping) and, to keep data from one broker to the next, with `data_dir=`.
    """
    from kohort.broker import Broker

    with ExitStack() as running:
        started = 0

        def start(config: Mapping[str, Any] | None = None, data_dir: Path | None = None) -> Broker:
            nonlocal started
            started += 1
            return running.enter_context(Broker(data_dir or tmp_path / f"kohort-broker-{started}", config or {}))

        yield start


@pytest.fixture
def kohort_broker(request: pytest.FixtureRequest, kohort_broker_factory: Callable[..., Broker]) -> Broker:
    """A broker of the test's own; `@pytest.mark.kohort_broker(config={…})` sets its properties."""
    marker = request.node.get_closest_marker("kohort_broker")
    return kohort_broker_factory(config=marker.kwargs.get("config") if marker else None)


@pytest.fixture(scope="session")
def kohort_shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker for the whole run, for tests that use topics and groups of their own names."""
    from kohort.broker import Broker

    with Broker(tmp_path_factory.mktemp("kohort-shared-broker")) as broker:
        yield broker
