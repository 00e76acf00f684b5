# The columns while they are filled, and the reader of one batch's records. No Python objects here.

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport realloc
from libc.string cimport memset

from kohort.wire._varint cimport varint, varlong_long_form


cdef extern from "_copy.h":
    const int KOHORT_SLACK
    void kohort_copy(uint8_t* dst, const uint8_t* src, size_t n, size_t readable) nogil


cdef enum Status:
    GOOD = 0
    BAD_CRC = 1  # 1 to 6 are DamageKind's numbers
    BAD_HEADER = 2
    OLD_FORMAT = 3
    BAD_CODEC = 4
    BAD_RECORD = 5
    TOO_LARGE = 6
    AT_END = 7
    FULL = 8
    NO_MEMORY = 9


cdef struct Binary:
    # A nullable binary column; ends (int32[n + 1]) is NULL where the column is not requested.
    int32_t* ends
    uint8_t* valid
    uint8_t* data
    int64_t capacity


cdef struct Marks:
    # The filled lengths of the columns. A damaged batch is dropped by restoring these marks.
    int64_t rows
    int64_t key_bytes
    int64_t key_nulls
    int64_t value_bytes
    int64_t value_nulls
    int64_t headerless
    int64_t entries
    int64_t name_bytes
    int64_t content_bytes
    int64_t content_nulls


cdef struct Wants:
    bint key
    bint value
    bint timestamp
    bint headers
    bint timestamp_type
    bint read_committed
    bint check_crcs
    int64_t scale  # of timestamps: 1 or 1000


cdef struct Out:
    Wants wants
    Marks marks
    int64_t row_capacity
    int64_t entry_capacity
    Binary key
    Binary value
    int64_t* offset
    int64_t* timestamp
    int32_t* partition
    int32_t* timestamp_type
    int32_t* header_ends
    uint8_t* header_valid
    Binary name
    Binary content


cdef struct Batch:
    const uint8_t* start
    const uint8_t* body
    int64_t size
    int64_t body_size
    int64_t base_offset
    int64_t last_offset
    int64_t base_timestamp
    int64_t max_timestamp
    int64_t producer_id
    int32_t leader_epoch
    int32_t count
    uint32_t crc
    int16_t attributes


cdef struct Window:
    # The requested offsets and the remaining rows; `stopped` is where a full read stopped.
    int64_t first
    int64_t end
    int64_t room
    int64_t stopped


cdef inline int64_t rounded(int64_t size) noexcept nogil:
    # Allocations come in four sizes per power of two, so that freed ones fit again. The least is small: a table of few
    # rows has 14 of them, and may wait in a queue with thousands of others.
    cdef int64_t step = 64
    while step * 8 <= size:
        step *= 2
    return (size + step - 1) // step * step


cdef inline bint grow(void** memory, int64_t size) noexcept nogil:
    cdef void* larger = realloc(memory[0], <size_t>rounded(size) + KOHORT_SLACK)
    if larger == NULL:
        return False
    memory[0] = larger
    return True


cdef inline bint grow_ends(Binary* column, int64_t rows) noexcept nogil:
    cdef bint fresh = column.ends == NULL
    if not grow(<void**>&column.ends, (rows + 1) * 4) or not grow(<void**>&column.valid, rows // 8 + 1):
        return False
    if fresh:
        column.ends[0] = 0
    return True


cdef inline bint grow_data(Binary* column, int64_t size) noexcept nogil:
    if size <= column.capacity and column.data != NULL:
        return True
    if size < 2 * column.capacity:
        size = 2 * column.capacity
    column.capacity = size
    return grow(<void**>&column.data, size)


cdef inline bint reserve_rows(Out* out, int64_t rows) noexcept nogil:
    # Reserves room for `rows` rows in total, in every requested column.
    if rows <= out.row_capacity:
        return True
    if rows < 2 * out.row_capacity:
        rows = 2 * out.row_capacity
    if out.wants.key and not grow_ends(&out.key, rows):
        return False
    if out.wants.value and not grow_ends(&out.value, rows):
        return False
    if not grow(<void**>&out.offset, rows * 8):
        return False
    if out.wants.timestamp and not grow(<void**>&out.timestamp, rows * 8):
        return False
    if not grow(<void**>&out.partition, rows * 4):
        return False
    if out.wants.timestamp_type and not grow(<void**>&out.timestamp_type, rows * 4):
        return False
    if out.wants.headers:
        if not grow(<void**>&out.header_ends, (rows + 1) * 4) or not grow(<void**>&out.header_valid, rows // 8 + 1):
            return False
        if out.row_capacity == 0:
            out.header_ends[0] = 0
    out.row_capacity = rows
    return True


cdef inline bint reserve_entries(Out* out, int64_t entries, int64_t size) noexcept nogil:
    # Reserves room for headers in total, the new ones with these bytes.
    if not grow_data(&out.name, out.marks.name_bytes + size) or not grow_data(&out.content, out.marks.content_bytes + size):
        return False
    if entries <= out.entry_capacity:
        return True
    if entries < 2 * out.entry_capacity:
        entries = 2 * out.entry_capacity
    if not grow_ends(&out.name, entries) or not grow_ends(&out.content, entries):
        return False
    out.entry_capacity = entries
    return True


cdef inline bint reserve_bytes(Out* out, int64_t size) noexcept nogil:
    # Reserves room for a batch of this size, however its bytes divide into key and value.
    if out.wants.key and not grow_data(&out.key, out.marks.key_bytes + size):
        return False
    return not out.wants.value or grow_data(&out.value, out.marks.value_bytes + size)


cdef inline void mark_valid(uint8_t* bits, int64_t row, bint valid) noexcept nogil:
    # Clears what a dropped batch left above the marks.
    cdef uint8_t bit = <uint8_t>(1 << (row & 7))
    bits[row >> 3] = (bits[row >> 3] & (bit - 1)) | (bit if valid else 0)


cdef inline int64_t put(Binary* column, int64_t row, int64_t used, const uint8_t* p, int32_t size, int64_t readable) noexcept nogil:
    # Appends bytes, or null for a size of -1; returns the bytes used then.
    mark_valid(column.valid, row, size >= 0)
    if size > 0:
        kohort_copy(column.data + used, p, size, readable)
        used += size
    column.ends[row + 1] = <int32_t>used
    return used


cdef inline int64_t scaled(int64_t ms, int64_t scale) noexcept nogil:
    cdef int64_t most = 9223372036854775
    if scale == 1:
        return ms
    if ms > most:
        ms = most
    elif ms < -most:
        ms = -most
    return ms * scale


cdef inline bint is_utf8(const uint8_t* p, int64_t size) noexcept nogil:
    # By the rules of Python's decoder: no overlong forms, no surrogates, nothing above U+10FFFF.
    cdef int64_t i = 0
    cdef int more
    cdef uint8_t byte, low, high
    while i < size:
        byte = p[i]
        i += 1
        if byte < 0x80:
            continue
        low, high = 0x80, 0xBF
        if 0xC2 <= byte <= 0xDF:
            more = 1
        elif 0xE0 <= byte <= 0xEF:
            more = 2
            if byte == 0xE0:
                low = 0xA0
            elif byte == 0xED:
                high = 0x9F
        elif 0xF0 <= byte <= 0xF4:
            more = 3
            if byte == 0xF0:
                low = 0x90
            elif byte == 0xF4:
                high = 0x8F
        else:
            return False
        while more > 0:
            if i >= size or p[i] < low or p[i] > high:
                return False
            low, high = 0x80, 0xBF
            i += 1
            more -= 1
    return True


cdef inline int put_headers(Out* out, int32_t count, const uint8_t** at, const uint8_t* stop) noexcept nogil:
    # Reads `count` headers and appends them where the column is requested. Moves `at` past them.
    cdef const uint8_t* p = at[0]
    cdef Marks* marks = &out.marks
    cdef int32_t i, size
    cdef int64_t j, start
    if out.wants.headers and not reserve_entries(out, marks.entries + count, stop - p):
        return NO_MEMORY
    for i in range(count):
        p = varint(p, stop, &size)
        if p == NULL or size < 0 or size > stop - p:
            return BAD_RECORD
        if out.wants.headers:
            start = marks.name_bytes
            marks.name_bytes = put(&out.name, marks.entries, start, p, size, 0)
            if not is_utf8(p, size):
                for j in range(start, marks.name_bytes):
                    if out.name.data[j] >= 0x80:
                        out.name.data[j] = 0x3F
        p = varint(p + size, stop, &size)
        if p == NULL or size < -1 or size > stop - p:
            return BAD_RECORD
        if out.wants.headers:
            marks.content_bytes = put(&out.content, marks.entries, marks.content_bytes, p, size, 0)
            marks.content_nulls += size < 0
            marks.entries += 1
        if size > 0:
            p += size
    at[0] = p
    return GOOD


cdef inline int put_row_headers(Out* out, int64_t row, const uint8_t* p, const uint8_t* stop) noexcept nogil:
    # Reads the end of a record: its headers, of which most have none, and nothing after them.
    cdef int32_t count
    cdef int status
    p = varint(p, stop, &count)
    if p == NULL or count < 0 or count > (stop - p) // 2:
        return BAD_RECORD
    if count:
        status = put_headers(out, count, &p, stop)
        if status != GOOD:
            return status
    if p != stop:
        return BAD_RECORD
    if out.wants.headers:
        mark_valid(out.header_valid, row, count > 0)
        out.header_ends[row + 1] = <int32_t>out.marks.entries
        out.marks.headerless += count == 0
    return GOOD


cdef inline int read_records(const Batch* batch, Out* out, Window* window) noexcept nogil:
    # Appends the requested rows of a batch; the columns have room. On damage the marks stay wherever they are.
    cdef const uint8_t* p = batch.body
    cdef const uint8_t* end = batch.body + batch.body_size
    cdef const uint8_t* stop
    cdef Binary key = out.key
    cdef Binary value = out.value
    cdef bint want_key = out.wants.key, want_value = out.wants.value, want_time = out.wants.timestamp
    cdef bint appended = (batch.attributes & 0x08) != 0
    cdef int64_t* offsets = out.offset
    cdef int64_t* times = out.timestamp
    cdef int64_t row = out.marks.rows, last_row = row + window.room
    cdef int64_t key_bytes = out.marks.key_bytes, value_bytes = out.marks.value_bytes
    cdef int64_t key_nulls = 0, value_nulls = 0, stamp = 0, offset
    cdef int64_t most_delta = batch.last_offset - batch.base_offset, scale = out.wants.scale
    cdef int32_t i, length = 0, delta = 0, last_delta = -1, size = 0
    cdef int status = GOOD
    for i in range(batch.count):
        p = varint(p, end, &length)
        if p == NULL or length < 1 or length > end - p:
            return BAD_RECORD
        stop = p + length
        p = varlong_long_form(p + 1, stop, &stamp)
        if p == NULL:
            return BAD_RECORD
        p = varint(p, stop, &delta)
        if p == NULL or delta <= last_delta or delta > most_delta:
            return BAD_RECORD
        last_delta = delta
        offset = batch.base_offset + delta
        if offset < window.first:
            p = stop
            continue
        if offset >= window.end or row == last_row:
            status = AT_END if offset >= window.end else FULL
            window.stopped = offset
            break
        p = varint(p, stop, &size)
        if p == NULL or size < -1 or size > stop - p:
            return BAD_RECORD
        if want_key:
            key_bytes = put(&key, row, key_bytes, p, size, end - p)
        if size > 0:
            p += size
        key_nulls += size < 0
        p = varint(p, stop, &size)
        if p == NULL or size < -1 or size > stop - p:
            return BAD_RECORD
        if want_value:
            value_bytes = put(&value, row, value_bytes, p, size, end - p)
        if size > 0:
            p += size
        value_nulls += size < 0
        if p + 1 == stop and p[0] == 0 and not out.wants.headers:
            p = stop
        else:
            status = put_row_headers(out, row, p, stop)
            if status != GOOD:
                return status
            p = stop
        offsets[row] = offset
        if want_time:
            stamp = batch.max_timestamp if appended else <int64_t>(<unsigned long long>batch.base_timestamp + <unsigned long long>stamp)
            times[row] = scaled(stamp, scale)
        row += 1
    if status == GOOD and p != end:
        return BAD_RECORD
    out.marks.key_bytes = key_bytes
    out.marks.key_nulls += key_nulls
    out.marks.value_bytes = value_bytes
    out.marks.value_nulls += value_nulls
    window.room -= row - out.marks.rows
    out.marks.rows = row
    return status
