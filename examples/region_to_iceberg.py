"""Writes a topic into an Iceberg table, and asks DuckDB: `python region_to_iceberg.py SERVERS [COUNT]`.

The member reads COUNT records, 1,000 by default, and leaves. For a table that goes on, leave out the lines that count.
Start as many processes as the work needs, with a member name each.

Payments for it: `seq 1000 | sed 's/^/customer-1:/' | kohort produce payments --key-separator :`. It waits for them.
"""

import sys
from pathlib import Path

import duckdb
import duckdb_extensions
import pyarrow as pa
import pyarrow.compute as pc

from kohort.region import IcebergTable, Region

servers = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
wanted = int(sys.argv[2]) if len(sys.argv) > 2 else 1000

lake = IcebergTable("shop.payments", warehouse="lake")
with (
    Region("payments", servers, checkpoint_every="1s") as region,
    region.consumer("member-1", group_id="lake", topics=["payments"], into=lake, start="beginning") as consumer,
):
    seen = 0
    for table in consumer.tables():
        customer = table["key"].cast(pa.string())
        amount = pc.cast(table["value"].cast(pa.string()), pa.int64())
        consumer.submit(pa.table({"customer": customer, "amount": amount, "at": table["timestamp"]}))
        seen += table.num_rows
        if seen >= wanted:
            consumer.close()  # the loop ends when this table is in the output

newest = max(Path("lake/shop/payments/metadata").glob("*.metadata.json"))
database = duckdb.connect(config={"extension_directory": "duckdb"})
for name in ("avro", "iceberg"):
    duckdb_extensions.import_extension(name, con=database)  # from its wheel; with a network INSTALL does as well
    database.execute(f"LOAD {name}")
sums = database.execute(
    f"SELECT customer, sum(amount) FROM iceberg_scan('{newest}') GROUP BY customer ORDER BY customer"
)
for customer, total in sums.fetchall():
    print(customer, total)
