# From record sets to batches, and the choice of batches to read: all steps between a fetch and `read_records`.

cdef struct Set:
    # A record set, its requested part, and how far the decode got.
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
    bint looked
    bint mixed  # batches of several leader epochs
    bint finished
    bint incomplete
    int damage
    int64_t damage_offset
    int64_t skip_offset


cdef struct Limits:
    int64_t rows
    int64_t bytes
    int64_t batch_bytes
    bint any
    bint spent


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


cdef int inflate(Batch* batch, Inflated inflated, int64_t limit):
    # Sets the batch's body to its decompressed records, of at most `limit` bytes.
    inflated.drop()
    data = PyMemoryView_FromMemory(<char*>batch.body, batch.body_size, PyBUF_READ)
    try:
        out = decompress(batch.attributes & CODEC_MASK, data, limit)
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
    # Returns PENDING with the next header read, GOOD at the end, or BAD_HEADER with the damage recorded.
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
    # Returns the type in a control record's key; -1 if there is none.
    cdef const uint8_t* end = batch.body + batch.body_size
    cdef const uint8_t* p
    cdef int32_t number
    cdef int64_t stamp
    p = varint(batch.body, end, &number)
    if p == NULL or p == end:
        return -1
    p = varlong_long_form(p + 1, end, &stamp)
    if p != NULL:
        p = varint(p, end, &number)
    if p != NULL:
        p = varint(p, end, &number)
    if p == NULL or number < 4 or number > end - p:
        return -1
    return kohort_be16(p + 2)


cdef int32_t place(const int64_t* sorted_ids, int32_t count, int64_t wanted) noexcept nogil:
    # Returns the index of the first id that is not below `wanted`.
    cdef int32_t low = 0, middle
    while low < count:
        middle = (low + count) // 2
        if sorted_ids[middle] < wanted:
            low = middle + 1
        else:
            count = middle
    return low


cdef bint dropped(Set* part, Batch* batch, bint read_committed) noexcept nogil:
    # Returns whether a batch is a control batch or part of an aborted transaction.
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


cdef void saw_epoch(Set* part, int32_t epoch) noexcept nogil:
    part.mixed = part.mixed or (part.looked and part.leader_epoch != epoch)
    part.looked = True
    part.leader_epoch = epoch


cdef int read_batch(Set* part, Batch* batch, Out* out, Limits* limits, Inflated inflated) noexcept nogil:
    # Appends a batch's rows. Returns GOOD, a kind of damage, AT_END, FULL or NO_MEMORY.
    cdef Window window
    cdef int64_t row = out.marks.rows
    cdef int32_t* kinds
    cdef int status
    if out.wants.check_crcs and kohort_crc32c(batch.start + CRC_START, batch.size - CRC_START, 0) != batch.crc:
        return BAD_CRC
    if batch.attributes & CODEC_MASK:
        with gil:
            status = inflate(batch, inflated, limits.batch_bytes)
        if status != GOOD:
            return status
    if batch.count > batch.body_size // RECORD_BYTES_MIN:
        return BAD_RECORD
    if limits.any and batch.body_size > limits.bytes:
        limits.spent = True
        return FULL
    limits.any = True
    limits.bytes -= min(batch.body_size, limits.bytes)
    if not reserve_rows(out, row + min(batch.count, limits.rows)) or not reserve_bytes(out, batch.body_size):
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
            saw_epoch(part, batch.leader_epoch)
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
            saw_epoch(part, batch.leader_epoch)
        part.next_offset = max(part.next_offset, min(batch.last_offset + 1, part.end_offset))
    return True


cdef void measure(const Set* parts, int count, int64_t* rows, int64_t* size) noexcept nogil:
    # Estimates the room that all the sets need; compressed bytes count as they are.
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
