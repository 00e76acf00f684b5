"""The fast path of `send`: a record of bytes is appended to the open batch of its partition.

Half of what `send` costs are checks for other records, and calls. `append_open` is one call for the usual record, and
leaves all others, and all errors, to `ProducerCore.send`. It is compiled (`_appender.pyx`): 0.3 µs for 100 bytes. Where
the kernel was not built, the plain classes here replace it with the same results, at 1.3 µs.

What both need of a batch, a queue and a delivery is in the base classes of `batches.py`, which are compiled with it.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from kohort.columns.encode import Chunk, murmur2
from kohort.errors import KafkaError
from kohort.ids import TopicPartition

OVERHEAD: Final = 96
"""Upper bound for a record's bytes beyond key, value and headers, for checks before it is encoded."""


class PlainBatchFill:
    """A producer batch being filled, in pure Python: its records so far and their counts.

    Attributes:
        chunk: The records, until the batch is sealed.
        count: The number of records.
        size: Bytes taken from the producer's memory.
    """

    __slots__ = ("chunk", "count", "size")
    chunk: Chunk | None
    count: int
    size: int


class PlainQueueOpening:
    """The part of a partition's queue that `append_open` needs: the batch that still takes records.

    Attributes:
        open: The batch that still takes records; None: there is none.
    """

    __slots__ = ("open",)
    open: PlainBatchFill | None


class PlainDeliveryPlace:
    """The index and timestamp of one record in its batch, from which the delivery computes its metadata later.

    The twin in plain Python of the kernel's `DeliveryPlace`.
    """

    __slots__ = ("_batch", "_index", "_timestamp")
    _batch: PlainBatchFill

    def __init__(self, batch: PlainBatchFill, index: int, timestamp: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp = timestamp


D = TypeVar("D", bound=PlainDeliveryPlace)


class PlainAppender(Generic[D]):
    """The fast path of `Producer.send` in plain Python, with the producer state that it needs; `mutex` guards it.

    Args:
        delivery_type: The class of the deliveries that `append_open` returns.
        memory: Bytes that all undelivered batches may take (`buffer.memory`).
        largest: The maximum size of a record, in bytes.
        bytes_only: Whether the producer has no serializer and no partitioner, so that this path may be used.

    Attributes:
        mutex: The lock.
        queues: The batches of each partition.
        places: The partitions of each known topic, in order.
        sticky_queues: By topic, the queue of records without a key.
        used: Bytes of undelivered batches.
        failure: Why records are no longer accepted.
        refusal: Called before each record is accepted, under the lock; raises to refuse it.
    """

    def __init__(self, delivery_type: type[D], memory: int, largest: int, bytes_only: bool) -> None:
        self.mutex = threading.Lock()
        self.queues: Mapping[TopicPartition, PlainQueueOpening] = {}
        self.places: dict[str, list[TopicPartition]] = {}
        self.sticky_queues: Mapping[str, PlainQueueOpening] = {}
        self.used = 0
        self.failure: KafkaError | None = None
        self.refusal: Callable[[TopicPartition], None] | None = None
        self._memory, self._largest, self._bytes_only = memory, largest, bytes_only
        self._delivery_type, self._new_delivery = delivery_type, delivery_type.__new__

    def append_open(self, topic: str, value: Any, key: Any) -> D | None:
        """Append a record of bytes without headers, with the current time, to the open batch of its partition.

        Returns:
            None, with nothing changed, if the record is of another kind, no batch is open, or it or the memory is full.
            `ProducerCore.send` handles these cases, and raises the errors.
        """
        if type(value) is not bytes or type(topic) is not str or not self._bytes_only:
            return None
        size = OVERHEAD + len(value)
        if key is None:
            queue = self.sticky_queues.get(topic)
        elif type(key) is bytes and (places := self.places.get(topic)):
            size += len(key)
            queue = self.queues.get(places[(murmur2(key) & 0x7FFFFFFF) % len(places)])
        else:
            return None
        if queue is None or size > self._largest:
            return None
        with self.mutex:
            batch = queue.open
            if batch is None or self.failure is not None or self.refusal is not None or self.used + size > self._memory:
                return None
            chunk, timestamp = batch.chunk, int(time.time() * 1000)
            if chunk is None or not chunk.append(timestamp, key, value, ()):
                return None
            after = chunk.size
            self.used += after - batch.size
            batch.size = after
            index = batch.count
            batch.count = index + 1
        delivery = self._new_delivery(self._delivery_type)  # the call of its __init__ is a tenth of `send`
        delivery._batch, delivery._index, delivery._timestamp = batch, index, timestamp
        return delivery


COMPILED = False
if TYPE_CHECKING:
    BatchFill = PlainBatchFill
    QueueOpening = PlainQueueOpening
    DeliveryPlace = PlainDeliveryPlace
    Appender = PlainAppender
    Mutex = threading.Lock
else:
    try:
        _compiled = importlib.import_module("kohort.client.producer._appender")
    except ImportError:
        BatchFill, QueueOpening, DeliveryPlace = PlainBatchFill, PlainQueueOpening, PlainDeliveryPlace
        Appender, Mutex = PlainAppender, threading.Lock
    else:
        BatchFill, QueueOpening, DeliveryPlace = _compiled.BatchFill, _compiled.QueueOpening, _compiled.DeliveryPlace
        Appender, Mutex = _compiled.Appender, _compiled.Mutex
        COMPILED = True
