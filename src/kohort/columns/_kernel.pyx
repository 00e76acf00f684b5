# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled decoder. Same rules in the same order as `reference.py`; `_rows.pxd` reads the records.

All record sets of a call are walked without the GIL; it is taken back only to decompress a batch. Each buffer of a
column is one allocation, which Arrow reads in place and which is freed with the last array over it.
"""

cimport cython
from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memmove, memset

from kohort.columns._rows cimport (
    AT_END, BAD_CODEC, BAD_CRC, BAD_HEADER, BAD_RECORD, FULL, GOOD, NO_MEMORY, OLD_FORMAT, TOO_LARGE,
    KOHORT_SLACK,
    Batch, Binary, Marks, Out, Window, grow, read_records, reserve_bytes, reserve_rows, rounded,
)
from kohort.wire._varint cimport varint, varlong_long_form

from kohort.wire.compression import CodecError, TooLargeError, decompress
from kohort.columns.shapes import INT64_MAX, Damage, DamageKind, Extent, RowRange, row_limit


cdef extern from "_crc32c.h":
    void kohort_crc32c_init() nogil
    uint32_t kohort_crc32c(const uint8_t* p, size_t n, int software) nogil


cdef extern from "_load.h":
    int16_t kohort_be16(const uint8_t* p) nogil
    int32_t kohort_be32(const uint8_t* p) nogil
    int64_t kohort_be64(const uint8_t* p) nogil


cdef enum:
    HEADER_BYTES = 61
    OVERHEAD = 12
    CRC_START = 21
    CODEC_MASK = 0x07
    LOG_APPEND_TIME = 0x08
    TRANSACTIONAL = 0x10
    CONTROL = 0x20
    ABORT_MARKER = 0
    RECORD_BYTES_MIN = 7
    PENDING = -1  # a batch to look at; no Status


cdef int64_t BASE_OFFSET_MAX = 9223372036854775807 - 4294967296

kohort_crc32c_init()

include "_memory.pxi"
include "_walk.pxi"


cdef void free_out(Out* out) noexcept:
    cdef Binary* columns[4]
    cdef int i
    columns[:] = [&out.key, &out.value, &out.name, &out.content]
    for i in range(4):
        free(columns[i].ends)
        free(columns[i].valid)
        free(columns[i].data)
    free(out.offset)
    free(out.timestamp)
    free(out.partition)
    free(out.timestamp_type)
    free(out.header_ends)
    free(out.header_valid)


@cython.final
@cython.no_gc
@cython.freelist(512)
cdef class Record:
    """One record of a topic, the compiled twin of `kohort.columns.record.Record`."""

    cdef public str topic
    cdef public object key
    cdef public object value
    cdef public object headers
    cdef public int64_t offset
    cdef public int64_t timestamp
    cdef public int32_t partition
    cdef public int32_t timestamp_type

    def __init__(
        self, topic, partition, offset, timestamp, key=None, value=None, headers=(), timestamp_type=0
    ):
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self.headers = headers
        self.timestamp_type = timestamp_type

    cdef tuple fields(self):
        return (
            self.topic, self.partition, self.offset, self.timestamp,
            self.key, self.value, self.headers, self.timestamp_type,
        )

    def __eq__(self, other):
        return self.fields() == (<Record>other).fields() if isinstance(other, Record) else NotImplemented

    def __hash__(self):
        return hash((self.topic, self.partition, self.offset))

    def __reduce__(self):
        return Record, self.fields()

    def __repr__(self):
        return (
            f"Record(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
            f"timestamp={self.timestamp}, key={self.key!r}, value={self.value!r}, headers={self.headers!r})"
        )


cdef inline object cell(Binary* column, int64_t row):
    if column.ends == NULL or not column.valid[row >> 3] >> (row & 7) & 1:
        return None
    return PyBytes_FromStringAndSize(
        <char*>column.data + column.ends[row], column.ends[row + 1] - column.ends[row]
    )


# Of a row: offset, timestamp, partition, timestamp type, and where key, value and headers end; of a header: where its
# name and content end.
cdef enum:
    ROW_BYTES = 36
    ENTRY_BYTES = 8


@cython.final
cdef class Columns:
    """The block of the compiled decoder.

    Until `keep` the allocations belong to `out`; then each belongs to a Memory in `owners`, and `out` only reads them.
    """

    cdef Out out
    cdef readonly int64_t rows
    cdef readonly int64_t entries
    cdef list topics
    cdef list stops
    cdef dict owners
    cdef bint kept

    def __dealloc__(self):
        if not self.kept:
            free_out(&self.out)

    cdef void keep_binary(self, str name, Binary* column, int64_t count, int64_t room, int64_t size):
        if column.ends != NULL:
            self.owners[name, "valid"] = take_over(<void**>&column.valid, (count + 7) // 8, room // 8)
            self.owners[name, "ends"] = take_over(<void**>&column.ends, (count + 1) * 4, room * 4)
            self.owners[name, "data"] = take_over(<void**>&column.data, size, column.capacity)

    cdef void keep(self, list topics, list stops):
        cdef Out* out = &self.out
        cdef Marks* marks = &out.marks
        cdef int64_t rows = marks.rows, room = out.row_capacity, entry_room = out.entry_capacity
        self.topics = topics
        self.stops = stops
        self.rows = rows
        self.entries = marks.entries
        self.owners = {}
        self.keep_binary("key", &out.key, rows, room, marks.key_bytes)
        self.keep_binary("value", &out.value, rows, room, marks.value_bytes)
        self.keep_binary("name", &out.name, marks.entries, entry_room, marks.name_bytes)
        self.keep_binary("content", &out.content, marks.entries, entry_room, marks.content_bytes)
        self.owners["offset"] = take_over(<void**>&out.offset, rows * 8, room * 8)
        self.owners["timestamp"] = take_over(<void**>&out.timestamp, rows * 8, room * 8)
        self.owners["partition"] = take_over(<void**>&out.partition, rows * 4, room * 4)
        self.owners["timestampType"] = take_over(<void**>&out.timestamp_type, rows * 4, room * 4)
        self.owners["headers", "ends"] = take_over(<void**>&out.header_ends, (rows + 1) * 4, room * 4)
        self.kept = True
        self.owners["headers", "valid"] = take_over(<void**>&out.header_valid, (rows + 7) // 8, room // 8)

    @property
    def nbytes(self):
        cdef Marks* marks = &self.out.marks
        cdef int64_t rows = self.rows * ROW_BYTES + self.entries * ENTRY_BYTES
        return rows + marks.key_bytes + marks.value_bytes + marks.name_bytes + marks.content_bytes

    def offset(self, int64_t row):
        if not 0 <= row < self.rows:
            raise IndexError(row)
        return self.out.offset[row]

    def arrow_arrays(self, options):
        from kohort.columns.arrow import arrays

        return arrays(self, options)

    def fixed(self, str name):
        """Return the buffer of a column of numbers."""
        return self.owners[name]

    def nullable(self, str name):
        """Return nulls and the buffers (validity or None, ends, data or None) of a column of bytes, or of headers."""
        cdef Marks* marks = &self.out.marks
        cdef int64_t nulls
        if name == "key":
            nulls = marks.key_nulls
        elif name == "value":
            nulls = marks.value_nulls
        elif name == "content":
            nulls = marks.content_nulls
        else:
            nulls = marks.headerless if name == "headers" else 0
        valid = self.owners[name, "valid"] if nulls else None
        return nulls, (valid, self.owners[name, "ends"], self.owners.get((name, "data")))

    def topic(self):
        """Return the buffers (ends, data) of the topic column: each set's topic, once for each of its rows."""
        cdef Memory ends = Memory.__new__(Memory), data = Memory.__new__(Memory)
        cdef list names = [topic.encode() for topic in self.topics]
        cdef int64_t row = 0, stop, used = 0, size, i
        cdef const uint8_t* name
        cdef int32_t* at
        for i in range(len(names)):
            stop = self.stops[i]
            used += (stop - row) * len(names[i])
            row = stop
        ends.size = (self.rows + 1) * 4
        data.size = used
        ends.data = <uint8_t*>take(ends.size)
        data.data = <uint8_t*>take(used)
        ends.room = rounded(ends.size)
        data.room = rounded(used)
        if ends.data == NULL or data.data == NULL:
            raise MemoryError
        at = <int32_t*>ends.data
        at[0] = 0
        row = used = 0
        for i in range(len(names)):
            name = names[i]
            size = len(names[i])
            stop = self.stops[i]
            with nogil:
                repeat(data.data + used, name, size, stop - row)
                while row < stop:
                    used += size
                    row += 1
                    at[row] = <int32_t>used
        return ends, data

    cdef tuple headers(self, int64_t row):
        cdef Out* out = &self.out
        cdef int64_t entry, start
        cdef list found
        if not out.wants.headers or out.header_ends[row] == out.header_ends[row + 1]:
            return ()
        found = []
        for entry in range(out.header_ends[row], out.header_ends[row + 1]):
            start = out.name.ends[entry]
            name = PyUnicode_DecodeUTF8(<char*>out.name.data + start, out.name.ends[entry + 1] - start, NULL)
            found.append((name, cell(&out.content, entry)))
        return tuple(found)

    cdef inline Record record(self, int64_t row, str topic):
        cdef Out* out = &self.out
        cdef Record record = Record.__new__(Record)
        record.topic = topic
        record.partition = out.partition[row]
        record.offset = out.offset[row]
        record.timestamp = out.timestamp[row] // out.wants.scale if out.wants.timestamp else -1
        record.timestamp_type = out.timestamp_type[row] if out.wants.timestamp_type else 0
        record.key = cell(&out.key, row)
        record.value = cell(&out.value, row)
        record.headers = self.headers(row)
        return record

    def iter_records(self, int64_t start, int64_t stop):
        """Return an iterator over the records of rows start to stop, which makes each when it is asked for."""
        cdef RecordIterator found = RecordIterator.__new__(RecordIterator)
        if not 0 <= start <= stop <= self.rows:
            raise IndexError((start, stop))
        found.columns = self
        found.row = start
        found.stop = stop
        return found

    def records(self, int64_t start, int64_t stop):
        return list(self.iter_records(start, stop))


@cython.final
cdef class RecordIterator:
    """The records of some rows. A loop that keeps none of them has each in memory that is warm from the one before."""

    cdef Columns columns
    cdef int64_t row
    cdef int64_t stop
    cdef int64_t until  # the first row of the next set
    cdef int64_t index
    cdef str topic

    def __iter__(self):
        return self

    def __length_hint__(self):
        return self.stop - self.row

    def __next__(self):
        cdef int64_t row = self.row
        if row == self.stop:
            raise StopIteration
        while row >= self.until:
            self.until = self.columns.stops[self.index]
            self.topic = self.columns.topics[self.index]
            self.index += 1
        self.row = row + 1
        return self.columns.record(row, self.topic)


cdef void repeat(uint8_t* data, const uint8_t* name, int64_t size, int64_t count) noexcept nogil:
    # Repeats `name` `count` times, each pass copying all that is there already.
    cdef int64_t have = size, whole = size * count
    if whole == 0:
        return
    memcpy(data, name, size)
    while have < whole:
        memcpy(data + have, data, min(have, whole - have))
        have *= 2


cdef void want(Out* out, options):
    cdef set names = set(options.columns)
    out.wants.key = "key" in names
    out.wants.value = "value" in names
    out.wants.timestamp = "timestamp" in names
    out.wants.timestamp_type = "timestampType" in names
    out.wants.headers = "headers" in names
    out.wants.read_committed = options.read_committed
    out.wants.check_crcs = options.check_crcs
    out.wants.scale = 1000 if options.timestamp_unit == "us" else 1


@cython.final
cdef class Sets:
    """The record sets of one call, as the walk without the GIL needs them, with the objects they keep alive."""

    cdef int count
    cdef Set* parts
    cdef Py_buffer* views
    cdef int held

    def __cinit__(self, sets):
        self.count = len(sets)
        self.parts = <Set*>calloc(self.count + 1, sizeof(Set))
        self.views = <Py_buffer*>calloc(self.count + 1, sizeof(Py_buffer))
        if self.parts == NULL or self.views == NULL:
            raise MemoryError
        for given in sets:
            self.hold(&self.parts[self.held], given)

    cdef int hold(self, Set* part, given) except -1:
        cdef list aborted
        cdef Py_buffer* view = &self.views[self.held]
        PyObject_GetBuffer(given.buffer, view, PyBUF_SIMPLE)
        self.held += 1
        part.at = <const uint8_t*>view.buf
        part.end = part.at + view.len
        part.first_offset = part.next_offset = given.first_offset
        part.end_offset = INT64_MAX if given.end_offset is None else given.end_offset
        part.partition = given.partition
        part.leader_epoch = -1
        if given.aborted:
            aborted = sorted([(first, producer) for producer, first in given.aborted])
            part.aborted_left = len(aborted)
            part.aborting = <int64_t*>malloc(3 * len(aborted) * sizeof(int64_t))
            if part.aborting == NULL:
                raise MemoryError
            part.aborted = part.aborting + len(aborted)
            for i, (first, producer) in enumerate(aborted):
                part.aborted[2 * i] = first
                part.aborted[2 * i + 1] = producer
        return 0

    def __dealloc__(self):
        cdef int i
        for i in range(self.held):
            PyBuffer_Release(&self.views[i])
            free(self.parts[i].aborting)
        free(self.parts)
        free(self.views)

    cdef list ranges(self):
        cdef Set* part
        cdef list found = []
        cdef int i
        for i in range(self.count):
            part = &self.parts[i]
            damage = None
            if part.damage:
                damage = Damage(DamageKind(part.damage), part.damage_offset, part.skip_offset)
            found.append(RowRange(
                part.start_row, part.stop_row, part.next_offset, part.leader_epoch,
                bool(part.finished), bool(part.incomplete), damage, not part.mixed,
            ))
        return found


cdef bint first_ends(Binary* column, int64_t rows) noexcept:
    column.ends = <int32_t*>take((rows + 1) * 4)
    column.valid = <uint8_t*>take(rows // 8 + 1)
    if column.ends == NULL or column.valid == NULL:
        return False
    column.ends[0] = 0
    return True


cdef bint prepare(Out* out, Sets parts, int64_t rows_max) noexcept:
    # Makes the first allocations, from memory that former decodes released. GIL held.
    cdef int64_t rows, size
    measure(parts.parts, parts.count, &rows, &size)
    rows = max(1, min(rows, rows_max))
    out.offset = <int64_t*>take(rows * 8)
    out.partition = <int32_t*>take(rows * 4)
    if out.offset == NULL or out.partition == NULL:
        return False
    if out.wants.timestamp:
        out.timestamp = <int64_t*>take(rows * 8)
        if out.timestamp == NULL:
            return False
    if out.wants.timestamp_type:
        out.timestamp_type = <int32_t*>take(rows * 4)
        if out.timestamp_type == NULL:
            return False
    if out.wants.key and not first_ends(&out.key, rows):
        return False
    if out.wants.value:
        if not first_ends(&out.value, rows):
            return False
        out.value.capacity = size
        out.value.data = <uint8_t*>take(size)
        if out.value.data == NULL:
            return False
    if out.wants.headers:
        out.header_ends = <int32_t*>take((rows + 1) * 4)
        out.header_valid = <uint8_t*>take(rows // 8 + 1)
        if not out.wants.headers or out.header_valid == NULL:
            return False
        out.header_ends[0] = 0
    out.row_capacity = rows
    return True


def decode_block(sets, options):
    """Decode as `kohort.columns.decode` does; return its two parts."""
    cdef Sets parts = Sets(sets)
    cdef Columns columns = Columns.__new__(Columns)
    cdef Inflated inflated = Inflated.__new__(Inflated)
    cdef Limits limits
    cdef bint done
    cdef list ranges
    want(&columns.out, options)
    limits.rows = row_limit(sets, options)
    limits.bytes = options.max_bytes
    limits.batch_bytes = options.max_batch_bytes
    limits.any = limits.spent = False
    if not prepare(&columns.out, parts, limits.rows):
        raise MemoryError("no memory for the columns of a fetch")
    with nogil:
        done = read_all(parts.parts, parts.count, &columns.out, &limits, inflated)
    if not done:
        raise MemoryError("the records of a fetch do not fit into memory")
    ranges = parts.ranges()
    columns.keep([given.topic for given in sets], [one.stop for one in ranges])
    return ranges, columns


def extent(buffer):
    """Read the batch headers as `kohort.columns.reference.extent` does."""
    cdef Py_buffer view
    cdef const uint8_t* p
    cdef int64_t left, base, next_offset = -1, records = 0
    cdef int32_t length, delta, count, epoch = -1
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    p = <const uint8_t*>view.buf
    left = view.len
    while left >= HEADER_BYTES:
        base = kohort_be64(p)
        length = kohort_be32(p + 8)
        delta = kohort_be32(p + 23)
        count = kohort_be32(p + 57)
        if length < HEADER_BYTES - OVERHEAD or length > left - OVERHEAD:
            break
        if base < 0 or base > BASE_OFFSET_MAX or delta < 0 or count < 0:
            break
        next_offset = base + delta + 1
        epoch = kohort_be32(p + 12)
        records += count
        p += <int64_t>length + OVERHEAD
        left -= <int64_t>length + OVERHEAD
    PyBuffer_Release(&view)
    return Extent(next_offset, records, epoch)


def crc32c(data, bint software=False):
    """Return the CRC-32C of bytes; `software` leaves the processor's instruction unused."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return kohort_crc32c(<const uint8_t*>view.buf, view.len, software)
    finally:
        PyBuffer_Release(&view)
