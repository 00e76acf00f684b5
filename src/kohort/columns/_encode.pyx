# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled encoder: records one by one, and whole Arrow columns without the GIL. Twin of `reference_encode.py`."""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from kohort.wire._varint cimport varlong_size, write_varlong

from kohort.columns.reference_encode import encode_headers
from kohort.errors import InvalidInputError
from kohort.wire.compression import compress


cdef extern from "_crc32c.h":
    void kohort_crc32c_init() nogil
    uint32_t kohort_crc32c(const uint8_t* p, size_t n, int software) nogil


cdef extern from "_load.h":
    void kohort_put16(uint8_t* p, int16_t value) nogil
    void kohort_put32(uint8_t* p, int32_t value) nogil
    void kohort_put64(uint8_t* p, int64_t value) nogil


cdef enum:
    HEADER_BYTES = 61
    OVERHEAD = 12
    CRC_AT = 17
    CRC_START = 21
    FIRST_ROOM = 1024
    TRANSACTIONAL = 0x10

kohort_crc32c_init()


cdef inline int64_t piece_size(Piece piece) noexcept nogil:
    return varlong_size(piece.size) + (piece.size if piece.size > 0 else 0)


cdef inline uint8_t* write_piece(uint8_t* p, Piece piece) noexcept nogil:
    p = write_varlong(p, piece.size)
    if piece.size > 0:
        memcpy(p, piece.data, <size_t>piece.size)
        p += piece.size
    return p


cdef inline int64_t content_size(Body* body, int64_t timestamp, Piece key, Piece value, Piece headers) noexcept nogil:
    # The size of the next record, after its length. `headers` is encoded already with its count; null: none.
    cdef int64_t delta = timestamp - body.base_timestamp if body.count else 0
    return (
        1 + varlong_size(delta) + varlong_size(body.count) + piece_size(key) + piece_size(value)
        + (headers.size if headers.size > 0 else 1)
    )


cdef inline bint stage_if_unit_full(Body* body, int64_t size, int64_t limit) noexcept nogil:
    cdef int64_t room
    cdef uint8_t* larger
    if size <= body.room:
        return True
    room = max(size, min(limit, max(FIRST_ROOM, 2 * body.room)))
    larger = <uint8_t*>realloc(body.data, <size_t>room)
    if larger == NULL:
        return False
    body.data = larger
    body.room = room
    return True


cdef inline int append_record(
    Body* body, int64_t limit, int64_t timestamp, Piece key, Piece value, Piece headers
) noexcept nogil:
    # Returns 1 if the record was appended, 0 without room, -1 without memory, -2 if it is larger than a batch can be.
    cdef int64_t content = content_size(body, timestamp, key, value, headers)
    cdef int64_t size = body.used + varlong_size(content) + content
    cdef uint8_t* p
    if size > limit and body.count:
        return 0
    if size > 2147483647:
        return -2
    if not stage_if_unit_full(body, size, limit):
        return -1
    if body.count == 0:
        body.base_timestamp = body.max_timestamp = timestamp
    elif timestamp > body.max_timestamp:
        body.max_timestamp = timestamp
    p = write_varlong(body.data + body.used, content)
    p[0] = 0
    p = write_varlong(p + 1, timestamp - body.base_timestamp)
    p = write_varlong(p, body.count)
    p = write_piece(p, key)
    p = write_piece(p, value)
    if headers.size > 0:
        memcpy(p, headers.data, <size_t>headers.size)
    else:
        p[0] = 0
    body.used = size
    body.count += 1
    return 1


cdef inline int hold(object data, Piece* piece, Py_buffer* view) except -1:
    # Points the piece at bytes; True when the view must be released.
    if data is None:
        piece.data = NULL
        piece.size = -1
        return False
    if PyBytes_CheckExact(data):
        piece.data = <const uint8_t*>PyBytes_AS_STRING(data)
        piece.size = PyBytes_GET_SIZE(data)
        return False
    PyObject_GetBuffer(data, view, PyBUF_SIMPLE)
    piece.data = <const uint8_t*>view.buf
    piece.size = view.len
    return True


@cython.final
cdef class Chunk:
    """A record batch while it is filled, then sealed; the compiled twin of `reference_encode.Chunk`."""

    def __cinit__(self, int64_t limit):
        self.limit = limit
        self.body.used = HEADER_BYTES

    def __dealloc__(self):
        free(self.body.data)

    def __getbuffer__(self, Py_buffer* view, int flags):
        if not self.sealed:
            raise BufferError("the batch is not sealed")
        PyBuffer_FillInfo(view, self, self.body.data, self.body.used, 0, flags)

    @property
    def count(self):
        return self.body.count

    @property
    def size(self):
        return self.body.used

    @property
    def base_timestamp(self):
        return self.body.base_timestamp

    @property
    def max_timestamp(self):
        return self.body.max_timestamp

    def append(self, int64_t timestamp, key, value, headers):
        """Append a record; False when the batch is full."""
        cdef Piece key_piece, value_piece, header_piece
        cdef Py_buffer key_view, value_view
        cdef bint key_held = False, value_held = False
        cdef int done
        header_piece.size = -1
        header_piece.data = NULL
        if headers:
            raw = encode_headers(headers)
            hold(raw, &header_piece, &key_view)
        try:
            key_held = hold(key, &key_piece, &key_view)
            value_held = hold(value, &value_piece, &value_view)
            done = append_record(&self.body, self.limit, timestamp, key_piece, value_piece, header_piece)
        finally:
            if key_held:
                PyBuffer_Release(&key_view)
            if value_held:
                PyBuffer_Release(&value_view)
        if done < 0:
            refuse(done)
        return done == 1

    cdef int append_plain(self, int64_t timestamp, Piece key, Piece value) noexcept nogil:
        # Append a record without headers. Returns 1, or with nothing changed 0 (full), -1 or -2 (see append_record).
        cdef Piece headers
        headers.data = NULL
        headers.size = -1
        return append_record(&self.body, self.limit, timestamp, key, value, headers)

    def seal(self, int codec, level, int64_t producer_id, int producer_epoch, int32_t sequence, bint transactional):
        """Return the finished batch, writable; an uncompressed one is this chunk's own memory."""
        cdef int attributes = codec | (TRANSACTIONAL if transactional else 0)
        cdef Py_buffer view
        if self.body.count == 0:
            raise InvalidInputError("a batch without records")
        self.sealed = True
        if codec == 0:
            head(self.body.data, &self.body, self.body.used, attributes, producer_id, producer_epoch, sequence)
            return memoryview(self)
        packed = compress(codec, memoryview(self)[HEADER_BYTES:], level)
        out = bytearray(HEADER_BYTES + len(packed))
        out[HEADER_BYTES:] = packed
        PyObject_GetBuffer(out, &view, PyBUF_SIMPLE)
        head(<uint8_t*>view.buf, &self.body, view.len, attributes, producer_id, producer_epoch, sequence)
        PyBuffer_Release(&view)
        return memoryview(out)


cdef void refuse(int done) except *:
    if done == -1:
        raise MemoryError("no memory for a record batch")
    raise InvalidInputError("a record of more than 2 GiB")


cdef void head(
    uint8_t* p, Body* body, int64_t size, int attributes, int64_t producer_id, int producer_epoch, int32_t sequence
) noexcept nogil:
    # Writes the batch header before the records, the checksum last; `size` includes the header.
    kohort_put64(p, 0)
    kohort_put32(p + 8, <int32_t>(size - OVERHEAD))
    kohort_put32(p + 12, -1)
    p[16] = 2
    kohort_put16(p + 21, <int16_t>attributes)
    kohort_put32(p + 23, body.count - 1)
    kohort_put64(p + 27, body.base_timestamp)
    kohort_put64(p + 35, body.max_timestamp)
    kohort_put64(p + 43, producer_id)
    kohort_put16(p + 51, <int16_t>producer_epoch)
    kohort_put32(p + 53, sequence)
    kohort_put32(p + 57, body.count)
    kohort_put32(p + CRC_AT, <int32_t>kohort_crc32c(p + CRC_START, <size_t>(size - CRC_START), 0))


cdef uint32_t hash_key(const uint8_t* data, int64_t size) noexcept nogil:
    # Murmur2 as Kafka's default partitioner uses it.
    cdef uint32_t mixer = 0x5BD1E995, value
    cdef uint32_t state = <uint32_t>0x9747B28C ^ <uint32_t>size
    cdef int64_t left = size
    while left >= 4:
        value = (
            <uint32_t>data[0] | (<uint32_t>data[1] << 8) | (<uint32_t>data[2] << 16) | (<uint32_t>data[3] << 24)
        )
        value *= mixer
        value ^= value >> 24
        value *= mixer
        state = (state * mixer) ^ value
        data += 4
        left -= 4
    if left == 3:
        state ^= <uint32_t>data[2] << 16
    if left >= 2:
        state ^= <uint32_t>data[1] << 8
    if left >= 1:
        state = (state ^ data[0]) * mixer
    state ^= state >> 13
    state *= mixer
    return state ^ (state >> 15)


def murmur2(data):
    """Return Kafka's hash of a key, unsigned."""
    cdef Piece piece
    cdef Py_buffer view
    cdef bint held = hold(data, &piece, &view)
    cdef uint32_t value = hash_key(piece.data, piece.size if piece.size > 0 else 0)
    if held:
        PyBuffer_Release(&view)
    return value


include "_table.pxi"
