# Varints as records have them: zigzag, low seven bits first. Readers return NULL for one that runs past `end`, or
# that holds more bits than its type. Every read from a record, in the walk that checks records (`wire/_record_walk.pyx`)
# and in the decoder (`columns/`), goes through these or through a length check. Numbers of one and two bytes, which
# nearly all are, are read in line. The decoder takes timestamps by `varlong_long_form`: its loop is 3 % faster without
# the two cases before it.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t


cdef inline const uint8_t* varint_long_form(const uint8_t* p, const uint8_t* end, int32_t* out) noexcept nogil:
    cdef uint32_t value = 0
    cdef int shift = 0
    while p < end:
        if shift == 28 and p[0] > 0x0F:
            return NULL
        value |= <uint32_t>(p[0] & 0x7F) << shift
        if p[0] < 0x80:
            out[0] = <int32_t>((value >> 1) ^ (0 - (value & 1)))
            return p + 1
        shift += 7
        p += 1
    return NULL


cdef inline const uint8_t* varint(const uint8_t* p, const uint8_t* end, int32_t* out) noexcept nogil:
    cdef uint32_t value
    cdef int32_t slow = 0
    if end - p >= 2:
        value = p[0]
        if value < 0x80:
            out[0] = <int32_t>((value >> 1) ^ (0 - (value & 1)))
            return p + 1
        if p[1] < 0x80:
            value = (value & 0x7F) | (<uint32_t>p[1] << 7)
            out[0] = <int32_t>((value >> 1) ^ (0 - (value & 1)))
            return p + 2
    p = varint_long_form(p, end, &slow)  # by a variable of its own: the others stay in registers
    out[0] = slow
    return p


cdef inline const uint8_t* varlong_long_form(const uint8_t* p, const uint8_t* end, int64_t* out) noexcept nogil:
    cdef uint64_t value = 0
    cdef int shift = 0
    while p < end:
        if shift == 63 and p[0] > 0x01:
            return NULL
        value |= <uint64_t>(p[0] & 0x7F) << shift
        if p[0] < 0x80:
            out[0] = <int64_t>((value >> 1) ^ (0 - (value & 1)))
            return p + 1
        shift += 7
        p += 1
    return NULL


cdef inline const uint8_t* varlong(const uint8_t* p, const uint8_t* end, int64_t* out) noexcept nogil:
    cdef uint64_t value
    cdef int64_t slow = 0
    if end - p >= 2:
        value = p[0]
        if value < 0x80:
            out[0] = <int64_t>((value >> 1) ^ (0 - (value & 1)))
            return p + 1
        if p[1] < 0x80:
            value = (value & 0x7F) | (<uint64_t>p[1] << 7)
            out[0] = <int64_t>((value >> 1) ^ (0 - (value & 1)))
            return p + 2
    p = varlong_long_form(p, end, &slow)  # by a variable of its own: the others stay in registers
    out[0] = slow
    return p


cdef inline int varlong_size(int64_t number) noexcept nogil:
    cdef uint64_t value = (<uint64_t>number << 1) ^ <uint64_t>(number >> 63)
    cdef int size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


cdef inline uint8_t* write_varlong(uint8_t* p, int64_t number) noexcept nogil:
    cdef uint64_t value = (<uint64_t>number << 1) ^ <uint64_t>(number >> 63)
    while value >= 0x80:
        p[0] = <uint8_t>(value | 0x80)
        value >>= 7
        p += 1
    p[0] = <uint8_t>value
    return p + 1
