"""Owners that somebody deleted in a real ZooKeeper, of a group that does not change: seen once an interval.

Source: spec 4.7, condition 1.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kohort.cluster.zookeeper.nodes import OFFSETS, OWNERS
from kohort.zookeeper import ZooKeeper
from tests.broker.literal_consumer import LiteralConsumer, eventually
from tests.broker.raw import RawClient, create_topic
from tests.cluster.broker_here import BrokerHere
from tests.cluster.test_broker_zookeeper import Look

TWO_EACH = ["a-0", "a-0", "b-0", "b-0"]


@pytest.fixture
def look(zookeeper: ZooKeeper) -> Iterator[Look]:
    found = Look(zookeeper)
    yield found
    found.close()


def owners(look: Look) -> list[str]:
    return sorted(look.tree(f"{OWNERS}/g").values())


def of_a(look: Look) -> str:
    """The path of one of the nodes that say that `a` owns a partition."""
    node = next(node for node, owner in sorted(look.tree(f"{OWNERS}/g").items()) if owner == "a-0")
    return f"{look.root}{OWNERS}/g/{node}"


def delete_one(look: Look) -> None:
    look.client.delete(of_a(look))


def delete_group(look: Look) -> None:
    look.client.delete(f"{look.root}{OWNERS}/g", recursive=True)


def delete_all(look: Look) -> None:
    look.client.delete(f"{look.root}{OWNERS}", recursive=True)


def write_another(look: Look) -> None:
    look.client.set(of_a(look), b"x-0")


@pytest.mark.parametrize("spoil", [delete_one, delete_group, delete_all, write_another])
def test_owners_that_are_gone_cause_a_rebalance_of_a_group_that_does_not_change(
    look: Look, tmp_path: Path, spoil: Callable[[Look], None]
) -> None:
    """Whoever owned what is missing is stopped and started, once; all is written again, and offsets stay."""
    with BrokerHere(tmp_path, look.address, owners_look_s=0.2) as broker:
        with RawClient(broker.address) as client:
            create_topic(client, "t", 4)
        consumers = [LiteralConsumer(broker.address, "g", name, json.dumps({"t": 1})) for name in "ab"]
        a, b = consumers
        eventually(lambda: owners(look) == TWO_EACH)
        eventually(lambda: set(look.tree(f"{OFFSETS}/g").values()) == {"0"})
        stops, kept = [consumer.asked.count("stop") for consumer in consumers], set(a.registry)
        spoil(look)
        a.until(lambda each: each.asked.count("stop") == stops[0] + 1 and each.fetching)
        eventually(lambda: owners(look) == TWO_EACH)
        if spoil in (delete_group, delete_all):
            b.until(lambda each: each.asked.count("stop") == stops[1] + 1 and each.fetching)
        a.until(lambda each: each.asked.count("ping") > 2)  # several looks on
        again = [consumer.asked.count("stop") for consumer in consumers]
        both = spoil in (delete_group, delete_all)
        assert again == [stops[0] + 1, stops[1] + both], "stopped for nothing"
        assert set(a.registry) == kept
        for consumer in consumers:
            consumer.close()
