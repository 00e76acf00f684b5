"""Schema registries: their client, values with a schema id before them, and an embedded registry for tests.

`registry.py` asks a registry over HTTP, within limits. `avro_values.py` turns Avro values into Python objects and back.
`avro_limits.py` refuses schemas that a hostile value could use to exhaust the process. `protobuf_schemas.py` and
`protobuf_values.py` do the same for Protobuf, and `protobuf_changes.py` compares versions. `embedded.py` serves a
subset of Confluent's REST interface.
"""
