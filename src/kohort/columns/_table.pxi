# Arrow columns into batches.

cdef struct Cells:
    # An Arrow column of bytes. width: 4 or 8 bytes an offset, 0 for fixed size; data NULL with width -1: all null.
    const uint8_t* valid
    const uint8_t* ends
    const uint8_t* data
    int64_t first
    int32_t width
    int32_t fixed


cdef inline bint is_valid(const uint8_t* bits, int64_t at) noexcept nogil:
    return bits == NULL or (bits[at >> 3] >> (at & 7)) & 1


cdef inline Piece cell(const Cells* cells, int64_t row) noexcept nogil:
    cdef Piece piece
    cdef int64_t start
    piece.data = NULL
    piece.size = -1
    row += cells.first
    if cells.width < 0 or not is_valid(cells.valid, row):
        return piece
    if cells.width == 4:
        start = (<const int32_t*>cells.ends)[row]
        piece.size = (<const int32_t*>cells.ends)[row + 1] - start
    elif cells.width == 8:
        start = (<const int64_t*>cells.ends)[row]
        piece.size = (<const int64_t*>cells.ends)[row + 1] - start
    else:
        start = row * cells.fixed
        piece.size = cells.fixed
    piece.data = cells.data + start
    return piece


@cython.final
cdef class Column:
    """An Arrow column's buffers, held while it is read.

    Args:
        buffers: The array's buffers as pyarrow gives them: validity or None, offsets (not for fixed sizes), data.
        first: The array's own offset.
        width: Bytes of an offset (4 or 8), 0 for a fixed size.
        fixed: That size.
    """

    cdef Cells cells
    cdef Py_buffer views[3]
    cdef int held

    def __cinit__(self, list buffers, int64_t first, int32_t width, int32_t fixed=0):
        cdef const uint8_t* found[3]
        cdef int i
        found[:] = [NULL, NULL, NULL]
        for i in range(len(buffers)):
            if buffers[i] is not None:
                PyObject_GetBuffer(buffers[i], &self.views[self.held], PyBUF_SIMPLE)
                found[i] = <const uint8_t*>self.views[self.held].buf
                self.held += 1
        self.cells.valid = found[0]
        self.cells.ends = found[1]
        self.cells.data = found[2] if width else found[1]
        self.cells.first = first
        self.cells.width = width
        self.cells.fixed = fixed

    def __dealloc__(self):
        cdef int i
        for i in range(self.held):
            PyBuffer_Release(&self.views[i])


@cython.final
cdef class HeaderColumn:
    """An Arrow column of headers: a list's validity and int32 ends, and the columns of names and contents."""

    cdef Column lists
    cdef Column names
    cdef Column contents

    def __cinit__(self, Column lists, Column names, Column contents):
        self.lists = lists
        self.names = names
        self.contents = contents


cdef struct HeaderCells:
    const Cells* lists
    const Cells* names
    const Cells* contents
    uint8_t* scratch
    int64_t room


cdef Piece header_piece(HeaderCells* headers, int64_t row) noexcept nogil:
    # A row's headers encoded into the scratch; data NULL and size -2 when memory ran out.
    cdef Piece piece, name, content
    cdef int64_t start, stop, entry, size
    cdef uint8_t* p
    piece.data = NULL
    piece.size = -1
    row += headers.lists.first
    if not is_valid(headers.lists.valid, row):
        return piece
    start = (<const int32_t*>headers.lists.ends)[row]
    stop = (<const int32_t*>headers.lists.ends)[row + 1]
    size = varlong_size(stop - start)
    for entry in range(start, stop):
        name = cell(headers.names, entry)
        size += 5 + max(<int64_t>0, name.size) + piece_size(cell(headers.contents, entry))
    if size > headers.room:
        p = <uint8_t*>realloc(headers.scratch, <size_t>size * 2)
        if p == NULL:
            piece.size = -2
            return piece
        headers.scratch = p
        headers.room = size * 2
    p = write_varlong(headers.scratch, stop - start)
    for entry in range(start, stop):
        name = cell(headers.names, entry)
        if name.size < 0:
            name.size = 0
        content = cell(headers.contents, entry)
        p = write_piece(write_piece(p, name), content)
    piece.data = headers.scratch
    piece.size = p - headers.scratch
    return piece


cdef struct Rows:
    # What to encode. Columns that are absent: key and value of width -1, times and partitions NULL.
    Cells key
    Cells value
    HeaderCells headers
    const int64_t* times
    const int32_t* partitions
    int64_t divisor        # of times, to milliseconds
    int64_t now
    int32_t count          # of partitions
    int32_t sticky         # the partition of rows without a key
    bint has_headers


cdef int32_t place(const Rows* rows, int64_t row, Piece key) noexcept nogil:
    if rows.partitions != NULL:
        return rows.partitions[row]
    if key.size < 0:
        return rows.sticky
    return <int32_t>((hash_key(key.data, key.size) & 0x7FFFFFFF) % <uint32_t>rows.count)


cdef inline int64_t floored(int64_t number, int64_t divisor) noexcept nogil:
    cdef int64_t quotient = number // divisor
    return quotient - 1 if quotient * divisor > number else quotient


cdef int64_t encode_rows(
    Rows* rows, int64_t row, int64_t stop, Body* bodies, int64_t limit, int32_t* full, int* status
) noexcept nogil:
    # Encodes until a partition's batch is full (`full`) or the end; returns the row it stopped at.
    cdef Piece key, value, headers
    cdef int64_t stamp
    cdef int32_t partition
    headers.data = NULL
    headers.size = -1
    full[0] = -1
    status[0] = 1
    while row < stop:
        key = cell(&rows.key, row)
        value = cell(&rows.value, row)
        partition = place(rows, row, key)
        if partition < 0 or partition >= rows.count:
            status[0] = -3
            return row
        stamp = floored(rows.times[row], rows.divisor) if rows.times != NULL else rows.now
        if rows.has_headers:
            headers = header_piece(&rows.headers, row)
            if headers.size == -2:
                status[0] = -1
                return row
        status[0] = append_record(&bodies[partition], limit, stamp, key, value, headers)
        if status[0] <= 0:
            full[0] = partition
            return row
        row += 1
    return row


cdef void start_column(Cells* cells, Column column):
    cells.width = -1
    if column is not None:
        cells[0] = column.cells


cdef Chunk close_body(Body* body, int64_t limit):
    # The filled body becomes a chunk's; the body is empty again.
    cdef Chunk chunk = Chunk.__new__(Chunk, limit)
    chunk.body = body[0]
    memset(body, 0, sizeof(Body))
    body.used = HEADER_BYTES
    return chunk


def encode_columns(
    int64_t length, columns, times, partitions, int32_t count, pick_sticky, int64_t now, int64_t limit
):
    """Encode rows into batches.

    Args:
        length: Rows.
        columns: (key, value, headers): `Column`, `Column`, `HeaderColumn`, each or None.
        times: (buffer of int64, offset in rows, divisor to milliseconds), or None for `now`.
        partitions: (buffer of int32, offset in rows), or None to place by key.
        count: Partitions of the topic.
        pick_sticky: Called without arguments for the partition of rows without a key, again after each full batch.
        now: Milliseconds.
        limit: Bytes of a batch, header and all; a larger record gets a batch of its own.

    Returns:
        (partition, chunk) in the order in which the chunks were filled.
    """
    cdef Rows rows
    cdef Body* bodies
    cdef Py_buffer time_view, partition_view
    cdef Column key, value
    cdef HeaderColumn headers
    cdef int64_t row = 0
    cdef int32_t full = -1, partition
    cdef int status = 1
    cdef list found = []
    memset(&rows, 0, sizeof(Rows))
    key, value, headers = columns
    start_column(&rows.key, key)
    start_column(&rows.value, value)
    if headers is not None:
        rows.has_headers = True
        rows.headers.lists = &headers.lists.cells
        rows.headers.names = &headers.names.cells
        rows.headers.contents = &headers.contents.cells
    rows.now = now
    rows.count = count
    rows.sticky = pick_sticky()
    rows.divisor = 1
    bodies = <Body*>calloc(count, sizeof(Body))
    if bodies == NULL:
        raise MemoryError
    for partition in range(count):
        bodies[partition].used = HEADER_BYTES
    try:
        if times is not None:
            PyObject_GetBuffer(times[0], &time_view, PyBUF_SIMPLE)
            rows.times = <const int64_t*>time_view.buf + <int64_t>times[1]
            rows.divisor = times[2]
        if partitions is not None:
            PyObject_GetBuffer(partitions[0], &partition_view, PyBUF_SIMPLE)
            rows.partitions = <const int32_t*>partition_view.buf + <int64_t>partitions[1]
        while row < length:
            with nogil:
                row = encode_rows(&rows, row, length, bodies, limit, &full, &status)
            if status == -3:
                raise InvalidInputError(f"row {row}: no such partition; the topic has {count}")
            if status < 0:
                refuse(status)
            if full >= 0:
                found.append((full, close_body(&bodies[full], limit)))
                if full == rows.sticky:
                    rows.sticky = pick_sticky()
        for partition in range(count):
            if bodies[partition].count:
                found.append((partition, close_body(&bodies[partition], limit)))
    finally:
        if rows.times != NULL:
            PyBuffer_Release(&time_view)
        if rows.partitions != NULL:
            PyBuffer_Release(&partition_view)
        for partition in range(count):
            free(bodies[partition].data)
        free(bodies)
        free(rows.headers.scratch)
    return found
