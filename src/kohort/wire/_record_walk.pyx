# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled walk over a batch's records: the same rules in the same order as `record_walk.py`.

Nothing is copied and nothing decoded. Large batches are walked without the GIL, so that the loop's thread goes on.

`collect_keys` and `keep_latest` are compaction's walks, for `records.py`. Both decline a batch with anything unusual in
its framing: the plain walk of `records.py` decides about that and has the errors.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from kohort.wire._varint cimport varint, varlong


cdef extern from "_crc32c.h":
    void kohort_crc32c_init() nogil
    uint32_t kohort_crc32c_on(uint32_t crc, const uint8_t* p, size_t n, int software) nogil


kohort_crc32c_init()


cdef enum:
    RECORD_BYTES_MIN = 7
    WRONG_MAX = 1000
    ALONE_BYTES = 65536
    TURN_RECORDS = 8192
    LOG_APPEND_TIME = 0x08


cdef enum Status:
    # Numbers of `record_walk.FAULTS`.
    GOOD = 0
    COUNT = 1
    LENGTH = 2
    NUMBER = 3
    DELTA = 4
    KEY = 5
    VALUE = 6
    HEADER = 7
    REST = 8
    AFTER = 9


cdef enum Why:
    # Numbers of `record_walk.RejectedRecordReason`.
    NO_KEY = 1
    TIMESTAMP = 2
    SIZE = 3


cdef struct Rules:
    int64_t oldest
    int64_t newest
    int64_t largest
    bint keyed


cdef struct Wrong:
    int32_t index
    int32_t why
    int64_t number


cdef struct Fields:
    # The parts of one record.
    int64_t stamp
    int64_t size
    int32_t delta
    bint keyed
    const uint8_t* key
    int32_t key_size
    bint valued


cdef struct Walk:
    const uint8_t* p
    const uint8_t* end
    int32_t count
    int32_t index
    int64_t base_ms
    int64_t max_ms
    int32_t wrong_count


cdef int check_headers(const uint8_t* p, const uint8_t* stop) noexcept nogil:
    cdef int32_t count = 0, size = 0, i
    p = varint(p, stop, &count)
    if p == NULL or count < 0 or count > (stop - p) // 2:
        return HEADER
    for i in range(count):
        p = varint(p, stop, &size)
        if p == NULL or size < 0 or size > stop - p:
            return HEADER
        p = varint(p + size, stop, &size)
        if p == NULL or size < -1 or size > stop - p:
            return HEADER
        if size > 0:
            p += size
    return GOOD if p == stop else REST


cdef inline int next_record(const uint8_t** at, const uint8_t* end, Fields* fields) noexcept nogil:
    # Reads one record's numbers and skips its bytes.
    cdef const uint8_t* p
    cdef const uint8_t* stop
    cdef int32_t size = 0
    p = varint(at[0], end, &size)
    if p == NULL or size < RECORD_BYTES_MIN - 1 or size > end - p:
        return LENGTH
    stop = p + size
    at[0] = stop  # known before the record is read: the processor reads the next one meanwhile
    fields.size = size
    p = varlong(p + 1, stop, &fields.stamp)
    if p == NULL:
        return NUMBER
    p = varint(p, stop, &fields.delta)
    if p == NULL:
        return NUMBER
    p = varint(p, stop, &size)
    if p == NULL or size < -1 or size > stop - p:
        return KEY
    fields.keyed = size >= 0
    fields.key = p
    fields.key_size = size
    if size > 0:
        p += size
    p = varint(p, stop, &size)
    if p == NULL or size < -1 or size > stop - p:
        return VALUE
    fields.valued = size >= 0
    if size > 0:
        p += size
    if stop - p == 1 and p[0] == 0:
        return GOOD
    return check_headers(p, stop)


cdef void note(Walk* walk, Wrong* wrong, int32_t index, int32_t why, int64_t number) noexcept nogil:
    if walk.wrong_count < WRONG_MAX:
        wrong[walk.wrong_count].index = index
        wrong[walk.wrong_count].why = why
        wrong[walk.wrong_count].number = number
    walk.wrong_count += 1


cdef int check_all(Walk* walk, const Rules* rules, Wrong* wrong) noexcept nogil:
    cdef Fields fields
    cdef Rules bounds = rules[0]
    cdef const uint8_t* p = walk.p
    cdef const uint8_t* end = walk.end
    cdef int32_t index, count = walk.count
    cdef int64_t stamp, max_ms = walk.max_ms, base_ms = walk.base_ms
    cdef int status
    if count > (end - p) // RECORD_BYTES_MIN:
        return COUNT
    for index in range(count):
        status = next_record(&p, end, &fields)
        if status != GOOD or fields.delta != index:
            walk.index = index
            return status if status != GOOD else DELTA
        stamp = <int64_t>(<uint64_t>base_ms + <uint64_t>fields.stamp)
        if stamp > max_ms:
            max_ms = stamp
        if bounds.keyed and not fields.keyed:
            note(walk, wrong, index, NO_KEY, 0)
        elif stamp > bounds.newest or (stamp < bounds.oldest and stamp != -1):
            note(walk, wrong, index, TIMESTAMP, stamp)
        elif fields.size > bounds.largest:
            note(walk, wrong, index, SIZE, fields.size)
    walk.index = max(0, count)
    walk.max_ms = max_ms
    return GOOD if p == end else AFTER


cdef int find_first(Walk* walk, int64_t timestamp, int64_t delta, bint appended, Fields* fields) noexcept nogil:
    # Leaves the index at the record found, or at the count.
    cdef int status
    if walk.count > (walk.end - walk.p) // RECORD_BYTES_MIN:
        return COUNT
    while walk.index < walk.count:
        status = next_record(&walk.p, walk.end, fields)
        if status != GOOD:
            return status
        fields.stamp = walk.max_ms if appended else <int64_t>(<uint64_t>walk.base_ms + <uint64_t>fields.stamp)
        if fields.stamp >= timestamp and fields.delta >= delta:
            return GOOD
        walk.index += 1
    return GOOD


cdef object begin(Walk* walk, Py_buffer* view, Py_ssize_t start, header):
    if start > view.len:
        raise ValueError("the records begin after the buffer's end")
    walk.p = <const uint8_t*>view.buf + start
    walk.end = <const uint8_t*>view.buf + view.len
    walk.count = header[12]
    walk.index = 0
    walk.base_ms = header[7]
    walk.max_ms = -1
    walk.wrong_count = 0


def walk_records(data, Py_ssize_t start, header, rules):
    """Walk as `record_walk.walk_records_in_python` does."""
    cdef Py_buffer view
    cdef Walk walk
    cdef Rules bounds
    cdef Wrong wrong[WRONG_MAX]
    cdef int status, i
    bounds.oldest, bounds.newest, bounds.largest, bounds.keyed = rules
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        begin(&walk, &view, start, header)
        if view.len < ALONE_BYTES:
            status = check_all(&walk, &bounds, wrong)
        else:
            with nogil:
                status = check_all(&walk, &bounds, wrong)
    finally:
        PyBuffer_Release(&view)
    if status == GOOD and walk.wrong_count == 0:
        return GOOD, walk.index, walk.max_ms, 0, None
    return status, walk.index, walk.max_ms, walk.wrong_count, [
        (wrong[i].index, wrong[i].why, wrong[i].number) for i in range(min(walk.wrong_count, WRONG_MAX))
    ]


def find_record(data, Py_ssize_t start, header, int64_t timestamp, int64_t offset):
    """Find as `record_walk.find_record` does; return status, index, offset (-1: none) and timestamp."""
    cdef Py_buffer view
    cdef Walk walk
    cdef Fields fields
    cdef int status
    cdef int64_t base = header[0], delta = 0
    cdef bint appended = (<int>header[5] & LOG_APPEND_TIME) != 0
    if offset > base:  # a damaged base offset may be further away than the type reaches
        delta = <int64_t>min(<uint64_t>offset - <uint64_t>base, <uint64_t>INT64_MAX)
    fields.delta = 0
    fields.stamp = 0
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        begin(&walk, &view, start, header)
        walk.max_ms = header[8]
        if view.len < ALONE_BYTES:
            status = find_first(&walk, timestamp, delta, appended, &fields)
        else:
            with nogil:
                status = find_first(&walk, timestamp, delta, appended, &fields)
    finally:
        PyBuffer_Release(&view)
    if status != GOOD or walk.index >= walk.count:
        return status, walk.index, -1, -1
    return 0, walk.index, base + fields.delta, fields.stamp


cdef inline int let_others_run() except -1:
    # A large batch is walked in a thread of its own. The loop's thread, if it waits for the GIL, gets it here: each
    # millisecond.
    with nogil:
        pass
    return 0


def collect_keys(bytes body, header, dict last):
    """Set each key's offset as `records.collect_keys_in_python` does; False, with some set, for an unusual batch."""
    cdef Walk walk
    cdef Fields fields
    cdef Py_buffer view
    cdef int32_t index
    cdef int64_t base = header[0]
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        begin(&walk, &view, 0, header)
        for index in range(walk.count):
            if index % TURN_RECORDS == TURN_RECORDS - 1:
                let_others_run()
            if next_record(&walk.p, walk.end, &fields) != GOOD or fields.delta < 0:
                return False
            if fields.keyed:
                last[PyBytes_FromStringAndSize(<const char*>fields.key, fields.key_size)] = base + fields.delta
    finally:
        PyBuffer_Release(&view)
    return True


def keep_latest(bytes body, header, dict last, bint drop_tombstones):
    """Return what `records.keep_latest_in_python` returns; None for an unusual batch."""
    cdef Walk walk
    cdef Fields fields
    cdef Py_buffer view
    cdef const uint8_t* start
    cdef int64_t base = header[0], latest = -1, stamp
    cdef Py_ssize_t used = 0
    cdef int32_t index, count = 0
    cdef PyObject* found
    cdef bytearray kept = bytearray(len(body))
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        begin(&walk, &view, 0, header)
        for index in range(walk.count):
            if index % TURN_RECORDS == TURN_RECORDS - 1:
                let_others_run()
            start = walk.p
            if next_record(&walk.p, walk.end, &fields) != GOOD or fields.delta < 0:
                return None
            if not fields.keyed or (drop_tombstones and not fields.valued):
                continue
            key = PyBytes_FromStringAndSize(<const char*>fields.key, fields.key_size)
            found = PyDict_GetItem(last, key)
            if found != NULL and <int64_t>(<object>found) > base + fields.delta:
                continue
            memcpy(PyByteArray_AS_STRING(kept) + used, start, <size_t>(walk.p - start))
            used += walk.p - start
            count += 1
            stamp = fields.stamp
            if stamp > 0 and walk.base_ms > INT64_MAX - stamp or stamp < 0 and walk.base_ms < -INT64_MAX - stamp:
                return None  # beyond 64 bits
            if walk.base_ms + stamp > latest:
                latest = walk.base_ms + stamp
    finally:
        PyBuffer_Release(&view)
    PyByteArray_Resize(kept, used)
    return kept, count, latest


def crc32c(data, uint32_t crc=0):
    """Return the CRC-32C of bytes, continued from that of the bytes before; without the GIL for large ones."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if view.len < ALONE_BYTES:
            crc = kohort_crc32c_on(crc, <const uint8_t*>view.buf, view.len, 0)
        else:
            with nogil:
                crc = kohort_crc32c_on(crc, <const uint8_t*>view.buf, view.len, 0)
    finally:
        PyBuffer_Release(&view)
    return crc
