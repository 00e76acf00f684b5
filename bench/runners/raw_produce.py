"""Write the same batch again and again: `python -m bench.runners.raw_produce SERVERS TOPIC COUNT SIZE CODEC ROWS`.

Two connections with five requests in flight each. Requests are made beforehand, so that the client costs little, and
the rate is the broker's.
"""

from __future__ import annotations

import json
import random
import socket
import sys
import threading
import time

from kohort.wire import framing
from kohort.wire.batch import BatchRecord, build_batch
from kohort.wire.data import ProduceRequest, ProduceResponse

_CONNECTIONS = 2
_IN_FLIGHT = 5
_VERSION = 11


def produce_frame(topic: str, partition: int, size: int, codec: str, rows: int) -> bytes:
    """A request with one batch, whose values compress to about a third."""
    pick, now = random.Random(partition), int(time.time() * 1000)
    values = [bytes(pick.choices(b"abcdefgh ", k=size)) for _ in range(min(rows, 50))]
    records = [BatchRecord(index, now, None, values[index % len(values)]) for index in range(rows)]
    part = ProduceRequest.PartitionProduceData(index=partition, records=build_batch(records, compression=codec))
    topics = [ProduceRequest.TopicProduceData(name=topic, partition_data=[part])]
    message = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics)
    return framing.encode_request(message, _VERSION, 1, "raw")


def _read_answer(stream: socket.SocketIO) -> None:
    size = int.from_bytes(stream.read(4) or b"", "big")
    data = bytearray()
    while len(data) < size:
        data += stream.read(size - len(data)) or b""
    _, answer = framing.decode_response(ProduceResponse, _VERSION, bytes(data))
    code = answer.responses[0].partition_responses[0].error_code
    if code:
        raise SystemExit(f"a batch was refused: {code}")


def _send(address: tuple[str, int], frame: bytes, batches: int) -> None:
    with socket.create_connection(address, 60) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = socket.SocketIO(sock, "r")
        for number in range(batches + _IN_FLIGHT):
            if number < batches:
                sock.sendall(frame)
            if number >= _IN_FLIGHT:
                _read_answer(stream)


def main() -> None:
    """Write, and print what was written in which time."""
    servers, topic, count, size, codec, rows = sys.argv[1:]
    host, _, port = servers.rpartition(":")
    batches = max(1, int(count) // int(rows) // _CONNECTIONS)
    frames = [produce_frame(topic, partition, int(size), codec, int(rows)) for partition in range(_CONNECTIONS)]
    threads = [threading.Thread(target=_send, args=((host, int(port)), frame, batches)) for frame in frames]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    print(json.dumps({"amount": batches * int(rows) * _CONNECTIONS, "seconds": seconds}))


if __name__ == "__main__":
    main()
