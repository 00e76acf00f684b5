"""The order in which a producer serves its partitions while its broker takes less than is sent, in virtual time."""

from __future__ import annotations

from collections import Counter

from kohort.wire.data import ProduceRequest, ProduceResponse
from tests.client.test_producer_topics import World
from tests.client.virtual import PARK

PARTITIONS = 7
ROUNDS = 4


def test_all_partitions_have_their_turn_while_the_broker_is_slow() -> None:
    """Requests that are full with the first partitions' batches would leave the others out: KAFKA-13834."""
    world = World(
        "a",
        batch_size=300_000,
        max_in_flight_requests_per_connection=1,
        connections_per_broker=1,
        enable_idempotence=False,
    )
    world.cluster.topics["a"] = PARTITIONS
    world.cluster.call(world.core.partitions_for("a"))
    world.cluster.handlers["Produce"] = lambda message, version: PARK
    for _ in range(2 * ROUNDS):
        for number in range(PARTITIONS):
            world.core.send("a", bytes(200_000), None, number, None, (), None)
    served: Counter[int] = Counter()
    while min(served[number] for number in range(PARTITIONS)) < ROUNDS:
        world.pass_ms(100)
        (request,) = world.cluster.parked_named("Produce")
        served.update(_partitions(request.message))
        assert max(served.values()) - min(served[number] for number in range(PARTITIONS)) <= 1
        world.cluster.answer(request, _taken(request.message))


def _partitions(message: ProduceRequest) -> list[int]:
    return [part.index for topic in message.topic_data for part in topic.partition_data]


def _taken(message: ProduceRequest) -> ProduceResponse:
    result = ProduceResponse.TopicProduceResponse
    return ProduceResponse(
        responses=[
            result(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    result.PartitionProduceResponse(index=part.index, base_offset=0) for part in topic.partition_data
                ],
            )
            for topic in message.topic_data
        ]
    )
