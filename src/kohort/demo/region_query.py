"""A Spark application with a query of a consistent region, which writes exactly once into a Delta table.

    python -m kohort.demo.region_query --name anna --servers 127.0.0.1:9092 --topic flights --group etl --folder out

Two of them with different names share the topic's partitions and the table. When an application is killed, the region
returns to its last checkpoint, and the other query continues there: its rows appear once.
"""

from __future__ import annotations

from kohort.demo.group_query import delays, parse_arguments, source_options, start_spark
from kohort.region import DeltaTable
from kohort.spark import SparkRegion


def main() -> None:
    """Run the query until SIGTERM, after which the region makes a last checkpoint."""
    arguments = parse_arguments(__doc__)
    region = SparkRegion(
        start_spark(arguments),
        arguments.topic,  # the region's name
        arguments.servers,
        folder=arguments.folder / "checkpoints",
        checkpoint_every="2s",
        **{name.replace(".", "_"): value for name, value in arguments.client.items()},
    )
    region.query(
        arguments.name,  # further queries may read other topics and write into other tables, such as SqlTable
        delays,
        source=source_options(arguments) | {"columns": "value,partition,offset"},
        into=DeltaTable(arguments.folder / "delta"),
        start="beginning",
    )
    region.run()


if __name__ == "__main__":
    main()
