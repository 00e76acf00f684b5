# What `client/producer/_appender.pyx` calls of the encoder without Python's calls.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t


cdef struct Piece:
    # Bytes; a size of -1 is null.
    const uint8_t* data
    int64_t size


cdef struct Body:
    # A batch while it is filled: room for the header, then records.
    uint8_t* data
    int64_t used
    int64_t room
    int64_t base_timestamp
    int64_t max_timestamp
    int32_t count


cdef class Chunk:
    cdef Body body
    cdef int64_t limit
    cdef bint sealed
    cdef int append_plain(self, int64_t timestamp, Piece key, Piece value) noexcept nogil


cdef uint32_t hash_key(const uint8_t* data, int64_t size) noexcept nogil
