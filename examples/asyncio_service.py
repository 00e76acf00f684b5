"""A service on asyncio that turns requests into replies: `python asyncio_service.py SERVERS`. SIGTERM ends it cleanly.

Offsets are committed after the replies are acknowledged. A crash in between repeats some replies, and loses none.

Requests for it: `seq 10 | kohort produce requests`. `kohort consume replies --from-beginning` shows the replies.
"""

import asyncio
import contextlib
import signal
import sys

from kohort import AsyncConsumer, AsyncProducer, Record

servers = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"


async def reply_to(producer: AsyncProducer, record: Record) -> None:
    """Answers one request; a real service would ask a database here, which is why this is a coroutine."""
    await asyncio.sleep(0.001)
    await producer.send("replies", record.value.upper(), key=record.key)


async def main() -> None:
    """Answers requests until SIGTERM or Ctrl-C."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with (
        AsyncProducer(servers) as producer,
        AsyncConsumer(servers, group_id="shouting", auto_offset_reset="earliest", enable_auto_commit=False) as consumer,
    ):
        consumer.subscribe(["requests"])
        print("ready", flush=True)
        while not ended.is_set():
            records = await consumer.poll(timeout_ms=500)
            if not records:
                continue
            async with asyncio.TaskGroup() as answers:  # the requests of one poll at a time
                for record in records:
                    answers.create_task(reply_to(producer, record))
            await producer.flush()
            await consumer.commit()
    print("ended", flush=True)


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
