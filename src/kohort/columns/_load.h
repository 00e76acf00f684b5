/* Big-endian numbers from and to unaligned bytes. */
#ifndef KOHORT_LOAD_H
#define KOHORT_LOAD_H

#include <stdint.h>

static inline int16_t kohort_be16(const uint8_t *p) { return (int16_t)((uint16_t)p[0] << 8 | p[1]); }

static inline int32_t kohort_be32(const uint8_t *p) {
    return (int32_t)((uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]);
}

static inline int64_t kohort_be64(const uint8_t *p) {
    return (int64_t)((uint64_t)(uint32_t)kohort_be32(p) << 32 | (uint32_t)kohort_be32(p + 4));
}

static inline void kohort_put16(uint8_t *p, int16_t value) {
    p[0] = (uint8_t)((uint16_t)value >> 8);
    p[1] = (uint8_t)value;
}

static inline void kohort_put32(uint8_t *p, int32_t value) {
    kohort_put16(p, (int16_t)((uint32_t)value >> 16));
    kohort_put16(p + 2, (int16_t)value);
}

static inline void kohort_put64(uint8_t *p, int64_t value) {
    kohort_put32(p, (int32_t)((uint64_t)value >> 32));
    kohort_put32(p + 4, (int32_t)value);
}

#endif
