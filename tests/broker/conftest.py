"""Fixtures of the broker's tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from kohort import Broker
from tests.broker.raw import RawClient, create_topic

_names = itertools.count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker whose groups start at once; tests use topics and groups of their own names."""
    with Broker(tmp_path_factory.mktemp("broker"), {"group.initial.rebalance.delay.ms": 0}) as broker:
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    """A connection to it."""
    with RawClient(broker.bootstrap_servers) as client:
        yield client


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"name-{next(_names)}"


@pytest.fixture
def topic(client: RawClient, name: str) -> str:
    """A topic of one partition."""
    create_topic(client, name)
    return name
