"""kstreams: a stream publishes each record on, then commits. Arguments: servers, input, output, a folder.

kstreams reads the annotations themselves, so they must not be postponed.
"""

import asyncio
import sys

import kstreams
from kstreams.backends import Kafka

servers, source, target, _ = sys.argv[1:]
engine = kstreams.create_engine(title="frameworks-kstreams", backend=Kafka(bootstrap_servers=[servers]))


@engine.stream(
    source,
    group_id="frameworks-kstreams",
    enable_auto_commit=False,
    auto_offset_reset="earliest",
    session_timeout_ms=6000,
    heartbeat_interval_ms=1500,
)
async def forward(record: kstreams.ConsumerRecord, stream: kstreams.Stream) -> None:
    await engine.send(target, value=record.value, key=record.key)
    await stream.commit()


async def main() -> None:
    await engine.start()
    await asyncio.Event().wait()


asyncio.run(main())
