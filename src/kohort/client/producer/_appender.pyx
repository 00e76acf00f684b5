# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The compiled twin of `appender.py`: one call of C appends a record of bytes to an open batch.

Nothing between taking the lock and releasing it makes a Python object or runs Python code.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItemWithError
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.pythread cimport (
    NOWAIT_LOCK,
    PyThread_acquire_lock, PyThread_allocate_lock, PyThread_free_lock, PyThread_release_lock, PyThread_type_lock,
)
from cpython.time cimport time as seconds_since_1970
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport int64_t, uint8_t

from kohort.columns._encode cimport Chunk, Piece, hash_key


cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        object (*tp_new)(PyTypeObject*, object, PyObject*)
    int PyErr_CheckSignals() except -1


cdef extern from "pythread.h":
    ctypedef enum PyLockStatus:
        PY_LOCK_FAILURE
        PY_LOCK_ACQUIRED
        PY_LOCK_INTR
    PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock, long long, int) nogil


cdef enum:
    OVERHEAD = 96  # of `appender.py`


@cython.auto_pickle(False)
cdef class Mutex:
    """A lock as `threading.Lock`, which C takes without a Python call."""

    cdef PyThread_type_lock lock
    cdef bint held

    def __cinit__(self):
        self.lock = PyThread_allocate_lock()
        if self.lock == NULL:
            raise MemoryError("no memory for a lock")

    def __dealloc__(self):
        if self.lock != NULL:
            if self.held:
                PyThread_release_lock(self.lock)
            PyThread_free_lock(self.lock)

    cdef inline int take(self) except -1:
        if not PyThread_acquire_lock(self.lock, NOWAIT_LOCK):
            self.wait()
        self.held = True
        return 0

    cdef int wait(self) except -1:
        # Signals are handled meanwhile, as by `threading.Lock`: a handler that waits for its own thread can be interrupted.
        cdef PyLockStatus status = PY_LOCK_INTR
        while status == PY_LOCK_INTR:
            with nogil:
                status = PyThread_acquire_lock_timed(self.lock, -1, 1)
            if status == PY_LOCK_INTR:
                PyErr_CheckSignals()
        return 0

    cdef inline void give(self) noexcept:
        self.held = False
        PyThread_release_lock(self.lock)

    def acquire(self, bint blocking=True):
        """Take the lock; False if another thread has it and `blocking` is False."""
        if blocking:
            self.take()
            return True
        if not PyThread_acquire_lock(self.lock, NOWAIT_LOCK):
            return False
        self.held = True
        return True

    def release(self):
        """Release the lock.

        Raises:
            RuntimeError: The lock is not taken.
        """
        if not self.held:
            raise RuntimeError("release unlocked lock")
        self.give()

    def locked(self):
        """Return whether a thread has the lock."""
        return self.held

    def __enter__(self):
        self.take()
        return True

    def __exit__(self, *_):
        self.release()


@cython.auto_pickle(False)
cdef class BatchFill:
    """Compiled twin of `PlainBatchFill`."""

    cdef public object chunk
    cdef public int64_t count
    cdef public int64_t size


@cython.auto_pickle(False)
cdef class QueueOpening:
    """Compiled twin of `PlainQueueOpening`."""

    cdef public object open


@cython.auto_pickle(False)
cdef class DeliveryPlace:
    """Compiled twin of `PlainDeliveryPlace`."""

    cdef readonly object _batch
    cdef readonly int64_t _index
    cdef readonly int64_t _timestamp

    def __init__(self, batch, int64_t index, int64_t timestamp):
        self._batch = batch
        self._index = index
        self._timestamp = timestamp


@cython.auto_pickle(False)
cdef class Appender:
    """Compiled twin of `PlainAppender`."""

    cdef public Mutex mutex
    cdef public dict queues
    cdef public dict places
    cdef public dict sticky_queues
    cdef public int64_t used
    cdef public object failure
    cdef public object refusal
    cdef int64_t memory
    cdef int64_t largest
    cdef bint bytes_only
    cdef type delivery_type

    def __class_getitem__(cls, _):
        return cls

    def __init__(self, type delivery_type, int64_t memory, int64_t largest, bint bytes_only):
        if not issubclass(delivery_type, DeliveryPlace):
            raise TypeError("deliveries are of a class of DeliveryPlace")
        self.mutex = Mutex()
        self.queues = {}
        self.places = {}
        self.sticky_queues = {}
        self.delivery_type = delivery_type
        self.memory = memory
        self.largest = largest
        self.bytes_only = bytes_only

    cdef PyObject* queue_of_key(self, topic, key) except? NULL:
        cdef PyObject* found = PyDict_GetItemWithError(self.places, topic)
        cdef int64_t chosen
        if found == NULL:
            return NULL
        places = <list?><object>found
        if PyList_GET_SIZE(places) == 0:
            return NULL
        chosen = hash_key(<const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)) & 0x7FFFFFFF
        return PyDict_GetItemWithError(self.queues, <object>PyList_GET_ITEM(places, chosen % PyList_GET_SIZE(places)))

    def append_open(self, topic, value, key):
        """Append as `PlainAppender.append_open` does."""
        cdef PyObject* found
        cdef Piece key_piece, value_piece
        cdef QueueOpening queue
        cdef DeliveryPlace delivery
        cdef int64_t size
        if not (PyBytes_CheckExact(value) and PyUnicode_CheckExact(topic) and self.bytes_only):
            return None
        value_piece.data = <const uint8_t*>PyBytes_AS_STRING(value)
        value_piece.size = PyBytes_GET_SIZE(value)
        size = OVERHEAD + value_piece.size
        if key is None:
            key_piece.data = NULL
            key_piece.size = -1
            found = PyDict_GetItemWithError(self.sticky_queues, topic)
        elif PyBytes_CheckExact(key):
            key_piece.data = <const uint8_t*>PyBytes_AS_STRING(key)
            key_piece.size = PyBytes_GET_SIZE(key)
            size += key_piece.size
            found = self.queue_of_key(topic, key)
        else:
            return None
        if found == NULL or size > self.largest:
            return None
        queue = <QueueOpening?><object>found
        if queue.open is None:
            return None
        delivery = (<PyTypeObject*>self.delivery_type).tp_new(<PyTypeObject*>self.delivery_type, (), NULL)
        self.mutex.take()
        size = self.put(queue, size, key_piece, value_piece, delivery)
        self.mutex.give()
        if size <= 0:
            return None
        return delivery

    cdef inline int put(
        self, QueueOpening queue, int64_t size, Piece key, Piece value, DeliveryPlace delivery
    ) noexcept:
        # Under the lock. Returns 1 if the record was appended, else what `Chunk.append_plain` returns.
        cdef BatchFill batch
        cdef Chunk chunk
        cdef int64_t timestamp
        cdef int done
        if self.failure is not None or self.refusal is not None or self.used + size > self.memory:
            return 0
        if not isinstance(queue.open, BatchFill):
            return 0
        batch = <BatchFill>queue.open
        if type(batch.chunk) is not Chunk:
            return 0
        chunk = <Chunk>batch.chunk
        timestamp = <int64_t>(seconds_since_1970() * 1000)
        done = chunk.append_plain(timestamp, key, value)
        if done == 1:
            self.used += chunk.body.used - batch.size
            batch.size = chunk.body.used
            delivery._batch = batch
            delivery._index = batch.count
            delivery._timestamp = timestamp
            batch.count += 1
        return done
