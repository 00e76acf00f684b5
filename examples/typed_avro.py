"""Writes payments as Avro with a schema registry, and reads them typed: `python typed_avro.py SERVERS REGISTRY`.

Without the second argument it starts a registry of its own. The second writer has a newer schema, with one more field.
A Spark query reads the same topic with the options valueFormat=avro and schemaRegistryUrl.
"""

import json
import sys
from contextlib import ExitStack

from kohort import Consumer, Producer, SchemaRegistry
from kohort.testing import EmbeddedSchemaRegistry

OLD = {"type": "record", "name": "Payment", "fields": [{"name": "id", "type": "long"}]}
NEW = {**OLD, "fields": [*OLD["fields"], {"name": "total", "type": "double", "default": 0.0}]}


def write(servers: str, registry: SchemaRegistry, schema: dict[str, object], payments: list[dict[str, object]]) -> None:
    """Sends payments by a schema, which is registered if it is new."""
    serialize = registry.serializer("card-payments-value", json.dumps(schema))
    with Producer(servers, value_serializer=serialize) as producer:
        for payment in payments:
            producer.send("card-payments", payment)


with ExitStack() as running:
    servers = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
    url = sys.argv[2] if len(sys.argv) > 2 else running.enter_context(EmbeddedSchemaRegistry()).url
    registry = SchemaRegistry(url)
    write(servers, registry, OLD, [{"id": 1}, {"id": 2}])
    write(servers, registry, NEW, [{"id": 3, "total": 9.5}])
    settings = {"group_id": "card-payments", "auto_offset_reset": "earliest", "schema_registry_url": url}
    consumer = running.enter_context(Consumer(servers, **settings))
    consumer.subscribe(["card-payments"])
    read = 0
    while read < 3:
        for record in consumer.poll(timeout_ms=1000):
            read += 1
            print(record.value["id"], record.value.get("total", "no total"))
