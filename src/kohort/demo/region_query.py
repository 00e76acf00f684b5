"""A Spark application with a query of a consistent region, which writes exactly once into an Iceberg table.

    python -m kohort.demo.region_query --name anna --servers 127.0.0.1:9092 --topic flights --group etl --folder out

Two of them with different names share the topic's partitions and the table. When an application is killed, the region
returns to its last checkpoint, and the other query continues there: its rows appear once. The query keeps no state, so
that no folder for its checkpoints is shared: the topic has what another application needs.
"""

from __future__ import annotations

from kohort.demo.group_query import flight_rows, parse_arguments, source_options, start_spark
from kohort.region import IcebergTable
from kohort.spark import SparkRegion


def main() -> None:
    """Run the query until SIGTERM, after which the region makes a last checkpoint."""
    arguments = parse_arguments(__doc__)
    region = SparkRegion(
        start_spark(arguments),
        arguments.topic,  # the region's name
        arguments.servers,
        checkpoint_every="2s",
        **arguments.client,
    )
    region.query(
        arguments.name,  # further queries may read other topics and write into other tables, such as DeltaTable
        flight_rows,
        source=source_options(arguments) | {"columns": "value,partition,offset"},
        into=IcebergTable("air.flights", warehouse=arguments.folder / "lake"),  # or catalog={…} for several machines
        start="beginning",
    )
    region.run()


if __name__ == "__main__":
    main()
