/* Copies short byte strings without a call: sixteen bytes at a time, up to fifteen too many. */
#ifndef KOHORT_COPY_H
#define KOHORT_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define KOHORT_SLACK 64

/* `readable` is how many bytes may be read at src; dst must have KOHORT_SLACK bytes beyond n. */
static inline void kohort_copy(uint8_t *dst, const uint8_t *src, size_t n, size_t readable) {
    if (n <= 256 && readable >= n + 16) {
        for (size_t i = 0; i < n; i += 16) {
            uint64_t a, b;
            memcpy(&a, src + i, 8);
            memcpy(&b, src + i + 8, 8);
            memcpy(dst + i, &a, 8);
            memcpy(dst + i + 8, &b, 8);
        }
    } else {
        memcpy(dst, src, n);
    }
}

#endif
