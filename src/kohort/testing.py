"""The pytest plugin: a broker with real groups for each test that uses its fixture.

The plugin is installed with the package, so a test only names the fixture:

    def test_replay(kohort_broker):
        with Producer(kohort_broker.bootstrap_servers) as producer:
            ...

    @pytest.mark.kohort_broker({"num.partitions": 6})
    def test_with_six_partitions(kohort_broker): ...

    @pytest.mark.kohort_broker(secure=True)
    def test_login(kohort_broker):
        with Producer(**kohort_broker.client_properties) as producer:
            ...

The marker sets properties of that broker, under Kafka's names. It may also mark a class or, as `pytestmark`, a module.
Nearer markers add to farther ones, and win where both name a property.

Groups of these brokers begin with their first member: `group.initial.rebalance.delay.ms` is 0, as in the configuration
that Kafka ships for development. Kafka's default makes each new group wait 3 s for more members. That spares a
deployment some rebalances, and a test would only wait.

A broker can be made to fail on purpose. `kohort_broker.faults.add(Fault(...))` fails, delays, drops or holds requests
chosen by api, group, client and occurrence. `kohort_broker.kill()` and `.restart()` simulate a crash and a restart.

`kohort_schema_registry` is a schema registry of the test's own; clients get its `url`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:  # the plugin is imported by every pytest run; the broker only by tests that use it
    from kohort.broker import Broker
    from kohort.broker.server.fault_kinds import Fault
    from kohort.schema_registry.embedded import EmbeddedSchemaRegistry

__all__ = [
    "EmbeddedSchemaRegistry",
    "Fault",
    "kohort_broker",
    "kohort_broker_factory",
    "kohort_schema_registry",
    "kohort_shared_broker",
]

FIXTURE_DEFAULTS: Final[Mapping[str, Any]] = MappingProxyType({"group.initial.rebalance.delay.ms": 0})
"""Broker properties of all fixtures, below those of markers and arguments. Source: Kafka's config/server.properties."""
MARKER = (
    "kohort_broker(config, secure=False): a mapping of broker properties, under Kafka's names, for the fixture "
    "kohort_broker; secure=True: with TLS and a user"
)
_FORM = 'write @pytest.mark.kohort_broker({"num.partitions": 6}) or @pytest.mark.kohort_broker(secure=True)'


def __getattr__(name: str) -> Any:
    """Import `Fault` and `EmbeddedSchemaRegistry` when they are first used."""
    if name == "EmbeddedSchemaRegistry":
        from kohort.schema_registry.embedded import EmbeddedSchemaRegistry

        return EmbeddedSchemaRegistry
    if name != "Fault":
        raise AttributeError(f"module 'kohort.testing' has no attribute {name!r}")
    from kohort.broker.server.fault_kinds import Fault

    return Fault


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test that has the marker without using the fixture: its broker would lack the properties unnoticed."""
    if not isinstance(item, pytest.Function) or "request" in inspect.signature(item.function).parameters:
        return  # it may ask for the fixture while it runs
    fixtures = item.fixturenames
    marked = any(mark.name == "kohort_broker" for mark in item.own_markers)
    if marked and "kohort_broker" not in fixtures:
        others = [name for name in fixtures if name.startswith("kohort_")]
        instead = f"it uses {others[0]}" if others else "it uses no broker"
        pytest.fail(
            f"@pytest.mark.kohort_broker sets properties of the fixture kohort_broker, which this test does not use "
            f"({instead}); kohort_broker_factory takes them as config=",
            pytrace=False,
        )


def _marked_config(item: pytest.Item) -> tuple[dict[str, Any], bool]:
    """Return the properties and `secure` from the markers of a test, its class and its module, the nearest last.

    Raises:
        pytest.fail.Exception: a marker has another form.
    """
    config: dict[str, Any] = {}
    secure = False
    for mark in reversed(list(item.iter_markers("kohort_broker"))):
        named = dict(mark.kwargs)
        wanted = named.pop("secure", None)
        given = [*mark.args, *named.values()]
        fits = len(given) + (wanted is not None) > 0 and all(isinstance(value, Mapping) for value in given)
        if not fits or len(given) > 1 or not set(named) <= {"config"} or wanted not in (None, True, False):
            said = ", ".join([*map(repr, mark.args), *(f"{name}={value!r}" for name, value in mark.kwargs.items())])
            pytest.fail(
                f"@pytest.mark.kohort_broker({said}): it takes one mapping of broker properties; {_FORM}",
                pytrace=False,
            )
        config |= given[0] if given else {}
        secure = secure if wanted is None else wanted
    return config, secure


@pytest.fixture
def kohort_broker_factory(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Start any number of brokers, each with its own data folder; all end with the test.

    Call it with `config=` (a mapping) and, to keep data from one broker to the next, with `data_dir=`. With
    `secure=True` clients have to log in over TLS, by the broker's `client_properties`.
    """
    from kohort.broker import Broker

    with ExitStack() as running:
        started = 0

        def start_broker(
            config: Mapping[str, Any] | None = None, data_dir: Path | None = None, secure: bool = False
        ) -> Broker:
            nonlocal started
            started += 1
            folder = data_dir or tmp_path / f"kohort-broker-{started}"
            files = tmp_path / "kohort-security" if secure else None
            return running.enter_context(Broker(folder, {**FIXTURE_DEFAULTS, **(config or {})}, secure=files))

        yield start_broker


@pytest.fixture
def kohort_broker(request: pytest.FixtureRequest, kohort_broker_factory: Callable[..., Broker]) -> Broker:
    """Start a broker for one test; `@pytest.mark.kohort_broker({…})` sets its properties."""
    from kohort.errors import InvalidInputError

    config, secure = _marked_config(request.node)
    try:
        return kohort_broker_factory(config=config, secure=secure)
    except InvalidInputError as error:
        refused = error.message
    pytest.fail(f"@pytest.mark.kohort_broker({config!r}): {refused}", pytrace=False)


@pytest.fixture(scope="session")
def kohort_shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Start one broker for the whole run, for tests with their own topic and group names."""
    from kohort.broker import Broker

    with Broker(tmp_path_factory.mktemp("kohort-shared-broker"), FIXTURE_DEFAULTS) as broker:
        yield broker


@pytest.fixture
def kohort_schema_registry(tmp_path: Path) -> Iterator[EmbeddedSchemaRegistry]:
    """Start a schema registry for one test, with its schemas in the test's folder."""
    from kohort.schema_registry.embedded import EmbeddedSchemaRegistry

    with EmbeddedSchemaRegistry(tmp_path / "kohort-schema-registry") as registry:
        yield registry
