/* Copies short byte strings without a call: sixteen bytes at a time, up to fifteen too many. */
#ifndef KOHORT_COPY_H
#define KOHORT_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define KOHORT_SLACK 64

#if defined(__GNUC__) || defined(__clang__)
typedef uint64_t kohort_sixteen __attribute__((vector_size(16), aligned(1)));
#else
typedef struct {
    uint64_t low, high;
} kohort_sixteen;
#endif

/* `readable` is how many bytes may be read at src; dst must have KOHORT_SLACK bytes beyond n. */
static inline void kohort_copy(uint8_t *dst, const uint8_t *src, size_t n, size_t readable) {
    if (n <= 256 && readable >= n + 16) {
        for (size_t i = 0; i < n; i += 16) {
            kohort_sixteen part;
            memcpy(&part, src + i, 16);
            memcpy(dst + i, &part, 16);
        }
    } else {
        memcpy(dst, src, n);
    }
}

#endif
