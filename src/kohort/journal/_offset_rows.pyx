# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Committed offsets as records of a batch, for `sealing.py`, which encodes everything else and has the errors."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport INT32_MAX, INT32_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from kohort.ids import NO_TOPIC_ID
from kohort.wire._varint cimport varlong_size, write_varlong


cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object, Py_ssize_t*) except NULL
    bint PyUnicode_CheckExact(object)
    bint PyLong_CheckExact(object)
    long long PyLong_AsLongLongAndOverflow(object, int*) except? -1


cdef enum:
    FIELDS = 11
    NAME_MAX = 32767
    KEY_FIXED = 10  # version, two lengths, partition
    VALUE_FIXED = 24  # version, offset, leader epoch, length of the metadata, time
    ID_TAIL = 19  # one tagged field, its number and its size, and an id
    AROUND = 24  # the most bytes of a record beside its key and value


# The fields of `OffsetCommitted`.
cdef enum Field:
    GROUP = 0
    TOPIC = 1
    PARTITION = 2
    OFFSET = 3
    EPOCH = 4
    METADATA = 5
    TIME = 6
    EXPIRES = 7
    TOPIC_ID = 8
    PRODUCER = 9


cdef struct Text:
    const char* data
    Py_ssize_t size


cdef inline bint text(object value, Text* found) except -1:
    # Return whether it is a text that a record can hold.
    if not PyUnicode_CheckExact(value):
        return False
    found.data = PyUnicode_AsUTF8AndSize(value, &found.size)
    return found.size <= NAME_MAX


cdef inline bint number(object value, int64_t* found) except -1:
    cdef int overflow = 0
    if not PyLong_CheckExact(value):
        return False
    found[0] = PyLong_AsLongLongAndOverflow(value, &overflow)
    return overflow == 0


cdef inline uint8_t* put16(uint8_t* p, Py_ssize_t value) noexcept nogil:
    p[0] = <uint8_t>(value >> 8)
    p[1] = <uint8_t>value
    return p + 2


cdef inline uint8_t* put32(uint8_t* p, int32_t value) noexcept nogil:
    cdef uint32_t bits = <uint32_t>value
    p[0], p[1], p[2], p[3] = bits >> 24, (bits >> 16) & 255, (bits >> 8) & 255, bits & 255
    return p + 4


cdef inline uint8_t* put64(uint8_t* p, int64_t value) noexcept nogil:
    cdef uint64_t bits = <uint64_t>value
    cdef int at
    for at in range(8):
        p[at] = <uint8_t>(bits >> (56 - 8 * at))
    return p + 8


cdef inline uint8_t* put_text(uint8_t* p, Text value) noexcept nogil:
    memcpy(p, value.data, value.size)
    return p + value.size


cdef inline int uvarint_size(Py_ssize_t value) noexcept nogil:
    return 1 if value < 0x80 else 2 if value < 0x4000 else 3


cdef inline uint8_t* put_uvarint(uint8_t* p, Py_ssize_t value) noexcept nogil:
    while value >= 0x80:
        p[0] = <uint8_t>(value | 0x80)
        value >>= 7
        p += 1
    p[0] = <uint8_t>value
    return p + 1


def pack_offsets(list run, Py_ssize_t first, Py_ssize_t room):
    """Encode positions as the records of a batch from number `first` on.

    Args:
        run: `OffsetCommitted` records.
        first: the number of the first record in its batch.
        room: the most bytes.

    Returns:
        The bytes; None if they do not fit, or a record is of a transaction, of an old client that sets its expiration,
        or has a field that a record can't hold.
    """
    cdef Py_ssize_t count = PyList_GET_SIZE(run), index, needed = 0, key_size, value_size, size
    cdef Text group, topic, metadata
    cdef int64_t partition = 0, offset = 0, epoch = 0, time_ms = 0, expires = 0, producer = 0
    cdef PyObject* topic_id_before = NULL
    cdef PyObject* none = <PyObject*>NO_TOPIC_ID
    cdef object record, topic_id
    cdef bytes raw_id = b""
    cdef bint has_id = False
    cdef uint8_t* start
    cdef uint8_t* p
    if count == 0 or not PyTuple_Check(<object>PyList_GET_ITEM(run, 0)):
        return None
    for index in range(count):
        record = <object>PyList_GET_ITEM(run, index)
        if not PyTuple_Check(record) or PyTuple_GET_SIZE(record) != FIELDS:
            return None
        if not (
            text(<object>PyTuple_GET_ITEM(record, GROUP), &group)
            and text(<object>PyTuple_GET_ITEM(record, TOPIC), &topic)
            and text(<object>PyTuple_GET_ITEM(record, METADATA), &metadata)
        ):
            return None
        needed += KEY_FIXED + group.size + topic.size + VALUE_FIXED + metadata.size + ID_TAIL + AROUND
    if needed > room:
        return None
    cdef bytes buffer = PyBytes_FromStringAndSize(NULL, needed)
    start = p = <uint8_t*>PyBytes_AS_STRING(buffer)
    for index in range(count):
        record = <object>PyList_GET_ITEM(run, index)
        text(<object>PyTuple_GET_ITEM(record, GROUP), &group)
        text(<object>PyTuple_GET_ITEM(record, TOPIC), &topic)
        text(<object>PyTuple_GET_ITEM(record, METADATA), &metadata)
        if not (
            number(<object>PyTuple_GET_ITEM(record, PARTITION), &partition)
            and number(<object>PyTuple_GET_ITEM(record, OFFSET), &offset)
            and number(<object>PyTuple_GET_ITEM(record, EPOCH), &epoch)
            and number(<object>PyTuple_GET_ITEM(record, TIME), &time_ms)
            and number(<object>PyTuple_GET_ITEM(record, EXPIRES), &expires)
            and number(<object>PyTuple_GET_ITEM(record, PRODUCER), &producer)
        ):
            return None
        if expires >= 0 or producer >= 0 or not (INT32_MIN <= partition <= INT32_MAX and INT32_MIN <= epoch <= INT32_MAX):
            return None
        if PyTuple_GET_ITEM(record, TOPIC_ID) != topic_id_before:
            topic_id_before = PyTuple_GET_ITEM(record, TOPIC_ID)
            topic_id = <object>topic_id_before
            has_id = topic_id_before != none and topic_id != NO_TOPIC_ID
            raw_id = topic_id.bytes if has_id else b""
            if has_id and PyBytes_GET_SIZE(raw_id) != 16:
                return None
        key_size = KEY_FIXED + group.size + topic.size
        value_size = VALUE_FIXED + metadata.size
        if has_id:
            value_size += uvarint_size(metadata.size + 1) - 2 + ID_TAIL
        size = 3 + varlong_size(first + index) + varlong_size(key_size) + key_size + varlong_size(value_size) + value_size
        p = write_varlong(p, size)
        p[0] = p[1] = 0  # attributes, and the time relative to the batch's
        p = write_varlong(p + 2, first + index)
        p = write_varlong(p, key_size)
        p = put16(put_text(put16(put16(p, 1), group.size), group), topic.size)
        p = put32(put_text(p, topic), <int32_t>partition)
        p = write_varlong(p, value_size)
        p = put32(put64(put16(p, 4 if has_id else 3), offset), <int32_t>epoch)
        if has_id:
            p = put64(put_text(put_uvarint(p, metadata.size + 1), metadata), time_ms)
            p[0], p[1], p[2] = 1, 0, 16
            memcpy(p + 3, PyBytes_AS_STRING(raw_id), 16)
            p += ID_TAIL
        else:
            p = put64(put_text(put16(p, metadata.size), metadata), time_ms)
        p[0] = 0  # no headers
        p += 1
    return PyBytes_FromStringAndSize(<char*>start, p - start)
