"""Typed values: `value` as a column of the declared type, decoded as Arrow arrays before there are rows.

`declared.py` turns the options into a declaration. With the schema that Spark has parsed, the declaration becomes
`Values`, which is pickled to the workers (`decoding.py`). A format is a decoder. From an array of binary values it
makes an array of the declared type and the same length, and a reason for each bad value.

`decoding.py` also checks UTF-8 text. `json_columns.py` passes whole chunks to Arrow's JSON reader and proves that its
rows are the records. A parser beside it takes the records that Arrow refuses, one by one. `avro_records.py` reads with
fastavro.
"""
