"""Typed values: `value` as a column of its own type, made from Arrow before there are rows.

`declared.py` turns the options into a declaration; with the schema that Spark has parsed it becomes `Values`, which
travels to the workers (`decoding.py`). A format is a decoder: an array of binary values in, an array of the declared
type of the same length out, with a reason for each value that is none.

`text.py` checks UTF-8. `json_columns.py` hands whole chunks to Arrow's JSON reader and proves that its rows are the
records; what Arrow refuses goes to `json_records.py`, one by one. `avro_records.py` reads by fastavro.
"""
