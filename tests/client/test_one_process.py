"""Clients belong to one process: an attempt to pickle one, as Spark makes of what a function mentions, says so."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
from pyspark import cloudpickle

from kohort import Admin, Broker, Consumer, Producer
from kohort.client.consumer.range_reader import RangeReader
from kohort.lag import LagReader


@pytest.mark.parametrize("make", [Admin, Consumer, LagReader, Producer, RangeReader])
@pytest.mark.parametrize("dump", [pickle.dumps, cloudpickle.dumps])
def test_clients_are_created_in_each_process(
    our_broker: Broker, make: Callable[[str], Admin | Producer], dump: Callable[[object], bytes]
) -> None:
    with make(our_broker.bootstrap_servers) as client:
        with pytest.raises(TypeError, match=f"{type(client).__name__} can't be pickled: create one in each process"):
            dump(client)


def test_function_that_mentions_a_client_is_refused_too(our_broker: Broker) -> None:
    with Producer(our_broker.bootstrap_servers) as producer:
        with pytest.raises(TypeError, match="Producer can't be pickled: create one in each process, for Spark in"):
            cloudpickle.dumps(lambda value: producer.send("topic", value))
