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
from kohort.columns._varint cimport varint, varlong

from kohort.wire.compression import CodecError, TooLargeError, decompress
from kohort.columns.shapes import BYTES_MAX, INT64_MAX, Damage, DamageKind, RowRange, row_limit


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


cdef struct Set:
    # A record set, what is wanted of it, and how far it got.
    const uint8_t* at
    const uint8_t* end
    int64_t first_offset
    int64_t end_offset
    int32_t partition
    int64_t* aborted  # pairs of first offset and producer id, ascending
    int32_t aborted_left
    int64_t* aborting  # producer ids, ascending; room for all of `aborted`
    int32_t aborting_count
    int64_t start_row
    int64_t stop_row
    int64_t next_offset
    int32_t leader_epoch
    bint finished
    bint incomplete
    int damage
    int64_t damage_offset
    int64_t skip_offset


cdef struct Limits:
    int64_t rows
    int64_t bytes
    bint any
    bint spent


cdef enum:
    POOLED_MIN = 16384
    POOL_SLOTS = 32
    POOL_BYTES = 50331648

cdef void* pool_data[POOL_SLOTS]
cdef int64_t pool_room[POOL_SLOTS]
cdef int pool_count = 0
cdef int64_t pool_bytes = 0


cdef void give_back(void* data, int64_t room) noexcept:
    # Freed columns are kept for the next decode, up to POOL_BYTES: fresh pages cost more than filling them. GIL held.
    global pool_count, pool_bytes
    if data == NULL or room < POOLED_MIN or pool_count == POOL_SLOTS or pool_bytes + room > POOL_BYTES:
        free(data)
        return
    pool_data[pool_count] = data
    pool_room[pool_count] = room
    pool_count += 1
    pool_bytes += room


cdef void* take(int64_t size) noexcept:
    # An allocation of `rounded(size)`, a kept one if there is one. GIL held.
    global pool_count, pool_bytes
    cdef int64_t room = rounded(size)
    cdef int i
    for i in range(pool_count - 1, -1, -1):
        if pool_room[i] == room:
            data = pool_data[i]
            pool_count -= 1
            pool_bytes -= room
            pool_data[i] = pool_data[pool_count]
            pool_room[i] = pool_room[pool_count]
            return data
    return malloc(<size_t>room + KOHORT_SLACK)


@cython.final
cdef class Memory:
    """Bytes on the heap, given to Arrow as a buffer."""

    cdef uint8_t* data
    cdef Py_ssize_t size
    cdef int64_t room

    def __dealloc__(self):
        give_back(self.data, self.room)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 1, flags)


cdef Memory take_over(void** data, int64_t size, int64_t room):
    # The allocation becomes an object's, and stays readable by its pointer; much too much is given back. Arrow wants
    # an address also where there are no bytes.
    cdef Memory memory = Memory.__new__(Memory)
    if data[0] == NULL:
        data[0] = take(0)
        room = 0
    elif room > 4 * size + 65536 and grow(data, size):
        room = size
    memory.data = <uint8_t*>data[0]
    memory.size = size
    memory.room = rounded(room)
    return memory


cdef class Inflated:
    """The decompressed records of the batch being read."""

    cdef Py_buffer view
    cdef bint held

    cdef void drop(self):
        if self.held:
            PyBuffer_Release(&self.view)
            self.held = False

    def __dealloc__(self):
        self.drop()


cdef int inflate(Batch* batch, Inflated inflated):
    # Points the batch's body at its decompressed records.
    inflated.drop()
    data = PyMemoryView_FromMemory(<char*>batch.body, batch.body_size, PyBUF_READ)
    try:
        out = decompress(batch.attributes & CODEC_MASK, data, BYTES_MAX)
        PyObject_GetBuffer(out, &inflated.view, PyBUF_SIMPLE)
    except TooLargeError:
        return TOO_LARGE
    except CodecError:
        return BAD_CODEC
    except MemoryError:
        return NO_MEMORY
    inflated.held = True
    batch.body = <const uint8_t*>inflated.view.buf
    batch.body_size = inflated.view.len
    return GOOD


cdef void damaged(Set* part, int kind, int64_t base, int64_t last) noexcept nogil:
    cdef bint stated = 0 <= base <= BASE_OFFSET_MAX and kind != BAD_HEADER
    part.damage = kind
    part.damage_offset = base if stated and base > part.next_offset else part.next_offset
    part.skip_offset = (last if stated and last > part.damage_offset else part.damage_offset) + 1


cdef int next_batch(Set* part, Batch* batch) noexcept nogil:
    # PENDING with the next batch's header read, or GOOD at the end, or BAD_HEADER with the damage noted.
    cdef const uint8_t* p = part.at
    cdef int64_t left = part.end - p, base
    cdef int32_t length, delta
    if left == 0:
        return GOOD
    if left <= 16:
        part.incomplete = True
        return GOOD
    base = kohort_be64(p)
    length = kohort_be32(p + 8)
    if length < 14:
        damaged(part, BAD_HEADER, base, base)
        return BAD_HEADER
    if p[16] < 2:
        damaged(part, OLD_FORMAT, base, base)
        return BAD_HEADER
    if p[16] > 2 or length < HEADER_BYTES - OVERHEAD:
        damaged(part, BAD_HEADER, base, base)
        return BAD_HEADER
    if length > left - OVERHEAD:
        part.incomplete = True
        return GOOD
    delta = kohort_be32(p + 23)
    batch.count = kohort_be32(p + 57)
    if base < 0 or base > BASE_OFFSET_MAX or delta < 0 or batch.count < 0:
        damaged(part, BAD_HEADER, base, base)
        return BAD_HEADER
    batch.start = p
    batch.size = <int64_t>length + OVERHEAD
    batch.body = p + HEADER_BYTES
    batch.body_size = batch.size - HEADER_BYTES
    batch.base_offset = base
    batch.last_offset = base + delta
    batch.leader_epoch = kohort_be32(p + 12)
    batch.crc = <uint32_t>kohort_be32(p + 17)
    batch.attributes = kohort_be16(p + 21)
    batch.base_timestamp = kohort_be64(p + 27)
    batch.max_timestamp = kohort_be64(p + 35)
    batch.producer_id = kohort_be64(p + 43)
    part.at = p + batch.size
    return PENDING


cdef int control_type(Batch* batch) noexcept nogil:
    # The type in a control record's key; -1 if there is none.
    cdef const uint8_t* end = batch.body + batch.body_size
    cdef const uint8_t* p
    cdef int32_t number
    cdef int64_t stamp
    p = varint(batch.body, end, &number)
    if p == NULL or p == end:
        return -1
    p = varlong(p + 1, end, &stamp)
    if p != NULL:
        p = varint(p, end, &number)
    if p != NULL:
        p = varint(p, end, &number)
    if p == NULL or number < 4 or number > end - p:
        return -1
    return kohort_be16(p + 2)


cdef int32_t place(const int64_t* sorted_ids, int32_t count, int64_t wanted) noexcept nogil:
    # Index of the first id that is not below `wanted`.
    cdef int32_t low = 0, middle
    while low < count:
        middle = (low + count) // 2
        if sorted_ids[middle] < wanted:
            low = middle + 1
        else:
            count = middle
    return low


cdef bint dropped(Set* part, Batch* batch, bint read_committed) noexcept nogil:
    # Whether a batch is a control batch or part of an aborted transaction.
    cdef bint control = (batch.attributes & CONTROL) != 0
    cdef bint known
    cdef int64_t* ids = part.aborting
    cdef int32_t at
    if not read_committed:
        return control
    while part.aborted_left and part.aborted[0] <= batch.last_offset:
        at = place(ids, part.aborting_count, part.aborted[1])
        if at == part.aborting_count or ids[at] != part.aborted[1]:
            memmove(ids + at + 1, ids + at, (part.aborting_count - at) * sizeof(int64_t))
            ids[at] = part.aborted[1]
            part.aborting_count += 1
        part.aborted += 2
        part.aborted_left -= 1
    at = place(ids, part.aborting_count, batch.producer_id)
    known = at < part.aborting_count and ids[at] == batch.producer_id
    if control and known and control_type(batch) == ABORT_MARKER:
        part.aborting_count -= 1
        memmove(ids + at, ids + at + 1, (part.aborting_count - at) * sizeof(int64_t))
    return control or (known and (batch.attributes & TRANSACTIONAL) != 0)


cdef int read_batch(Set* part, Batch* batch, Out* out, Limits* limits, Inflated inflated) noexcept nogil:
    # Appends a batch's rows. GOOD, or a kind of damage, or AT_END, FULL or NO_MEMORY.
    cdef Window window
    cdef int64_t row = out.marks.rows
    cdef int32_t* kinds
    cdef int status
    if out.wants.check_crcs and kohort_crc32c(batch.start + CRC_START, batch.size - CRC_START, 0) != batch.crc:
        return BAD_CRC
    if batch.attributes & CODEC_MASK:
        with gil:
            status = inflate(batch, inflated)
        if status != GOOD:
            return status
    if batch.count > batch.body_size // RECORD_BYTES_MIN:
        return BAD_RECORD
    if limits.any and batch.body_size > limits.bytes:
        limits.spent = True
        return FULL
    limits.any = True
    limits.bytes -= min(batch.body_size, limits.bytes)
    if not reserve_rows(out, row + batch.count) or not reserve_bytes(out, batch.body_size):
        return NO_MEMORY
    window.first = part.first_offset
    window.end = part.end_offset
    window.room = limits.rows
    status = read_records(batch, out, &window)
    if status == GOOD or status == AT_END or status == FULL:
        limits.rows = window.room
        if out.wants.timestamp_type:
            kinds = out.timestamp_type
            for row in range(row, out.marks.rows):
                kinds[row] = (batch.attributes & LOG_APPEND_TIME) != 0
        if status != GOOD:
            part.leader_epoch = batch.leader_epoch
            if status == FULL:
                limits.spent = True
            part.next_offset = max(part.next_offset, part.end_offset if status == AT_END else window.stopped)
    return status


cdef bint read_set(Set* part, Out* out, Limits* limits, Inflated inflated) noexcept nogil:
    # Walks one record set; False when memory ran out.
    cdef Batch batch
    cdef Marks before
    cdef int status
    while next_batch(part, &batch) == PENDING:
        if batch.base_offset >= part.end_offset:
            part.next_offset = max(part.next_offset, part.end_offset)
            return True
        if limits.spent or limits.rows == 0:
            limits.spent = True
            return True
        if not dropped(part, &batch, out.wants.read_committed) and batch.last_offset >= part.first_offset:
            before = out.marks
            status = read_batch(part, &batch, out, limits, inflated)
            if status == NO_MEMORY:
                return False
            if status == AT_END or status == FULL:
                return True
            if status != GOOD:
                out.marks = before
                damaged(part, status, batch.base_offset, batch.last_offset)
                return True
        if batch.last_offset >= part.first_offset:
            part.leader_epoch = batch.leader_epoch
        part.next_offset = max(part.next_offset, min(batch.last_offset + 1, part.end_offset))
    return True


cdef void measure(const Set* parts, int count, int64_t* rows, int64_t* size) noexcept nogil:
    # About how much room all the sets will need; what is compressed counts as it is.
    cdef const uint8_t* p
    cdef int64_t length, records
    cdef int i
    rows[0] = size[0] = 0
    for i in range(count):
        p = parts[i].at
        while parts[i].end - p > HEADER_BYTES:
            length = <int64_t>kohort_be32(p + 8) + OVERHEAD
            if length < HEADER_BYTES or length > parts[i].end - p:
                break
            records = kohort_be32(p + 57)
            if 0 < records <= length // RECORD_BYTES_MIN:
                rows[0] += records
            size[0] += length - HEADER_BYTES
            p += length


cdef bint read_all(Set* parts, int count, Out* out, Limits* limits, Inflated inflated) noexcept nogil:
    cdef int64_t row
    cdef int i
    for i in range(count):
        parts[i].start_row = out.marks.rows
        if not read_set(&parts[i], out, limits, inflated):
            return False
        parts[i].stop_row = out.marks.rows
        parts[i].finished = not limits.spent
        for row in range(parts[i].start_row, parts[i].stop_row):
            out.partition[row] = parts[i].partition
    return True


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
    """One record of a topic; see `kohort.columns.record.Record`, whose twin this is."""

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

    def offset(self, int64_t row):
        if not 0 <= row < self.rows:
            raise IndexError(row)
        return self.out.offset[row]

    def arrow_arrays(self, options):
        from kohort.columns.arrow import arrays

        return arrays(self, options)

    def fixed(self, str name):
        """The buffer of a column of numbers."""
        return self.owners[name]

    def nullable(self, str name):
        """Nulls and the buffers (validity or None, ends, data or None) of a column of bytes, or of headers."""
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
        """The buffers (ends, data) of the topic column: each set's topic, once for each of its rows."""
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
                while row < stop:
                    memcpy(data.data + used, name, size)
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

    def records(self, int64_t start, int64_t stop):
        cdef Out* out = &self.out
        cdef list found = []
        cdef Record record
        cdef int64_t row, index = 0, until = 0
        cdef str topic = ""
        if not 0 <= start <= stop <= self.rows:
            raise IndexError((start, stop))
        for row in range(start, stop):
            while row >= until:
                until = self.stops[index]
                topic = self.topics[index]
                index += 1
            record = Record.__new__(Record)
            record.topic = topic
            record.partition = out.partition[row]
            record.offset = out.offset[row]
            record.timestamp = out.timestamp[row] // out.wants.scale if out.wants.timestamp else -1
            record.timestamp_type = out.timestamp_type[row] if out.wants.timestamp_type else 0
            record.key = cell(&out.key, row)
            record.value = cell(&out.value, row)
            record.headers = self.headers(row)
            found.append(record)
        return found


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
    """The record sets of one call as the walk without the GIL needs them, and what they hold on to meanwhile."""

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
                bool(part.finished), bool(part.incomplete), damage,
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
    # The first allocations, from what former decodes left. GIL held.
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
    """As `kohort.columns.decode`, in its two parts."""
    cdef Sets parts = Sets(sets)
    cdef Columns columns = Columns.__new__(Columns)
    cdef Inflated inflated = Inflated.__new__(Inflated)
    cdef Limits limits
    cdef bint done
    cdef list ranges
    want(&columns.out, options)
    limits.rows = row_limit(sets, options)
    limits.bytes = options.max_bytes
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


def crc32c(data, bint software=False):
    """CRC-32C of bytes; `software` leaves the processor's instruction unused."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return kohort_crc32c(<const uint8_t*>view.buf, view.len, software)
    finally:
        PyBuffer_Release(&view)
