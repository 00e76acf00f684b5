# Memory of columns: freed allocations kept for the next decode, and allocations that Arrow reads in place.

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
