/* CRC-32C (Castagnoli), the checksum of record batches.
 *
 * With SSE 4.2 three streams run side by side, since the instruction takes three cycles but starts one per cycle; their
 * parts are joined by tables that advance a CRC over a fixed number of zero bytes. Elsewhere: eight tables, eight bytes
 * a step. kohort_crc32c_init fills the tables and must have run once before kohort_crc32c is called. kohort_crc32c_on
 * continues from the CRC of the bytes before.
 */
#ifndef KOHORT_CRC32C_H
#define KOHORT_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define KOHORT_POLY 0x82F63B78u
#define KOHORT_LONG 5440
#define KOHORT_SHORT 256

static uint32_t kohort_step[8][256];
static uint32_t kohort_over_long[4][256];
static uint32_t kohort_over_short[4][256];
static int kohort_hardware;

static uint64_t kohort_load64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

static uint32_t kohort_crc_tables(uint32_t crc, const uint8_t *p, size_t n) {
    while (n >= 8) {
        uint32_t low = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        crc = kohort_step[7][low & 0xFF] ^ kohort_step[6][(low >> 8) & 0xFF] ^ kohort_step[5][(low >> 16) & 0xFF] ^
              kohort_step[4][low >> 24] ^ kohort_step[3][p[4]] ^ kohort_step[2][p[5]] ^ kohort_step[1][p[6]] ^
              kohort_step[0][p[7]];
        p += 8;
        n -= 8;
    }
    while (n--) crc = kohort_step[0][(crc ^ *p++) & 0xFF] ^ (crc >> 8);
    return crc;
}

/* The state that `zeros` zero bytes leave behind, for each value of each byte of the state before them. */
static void kohort_fill_over(uint32_t table[4][256], size_t zeros) {
    uint32_t bit[32];
    for (int i = 0; i < 32; i++) {
        uint32_t crc = 1u << i;
        for (size_t n = 0; n < zeros; n++) crc = kohort_step[0][crc & 0xFF] ^ (crc >> 8);
        bit[i] = crc;
    }
    for (int byte = 0; byte < 4; byte++)
        for (int value = 0; value < 256; value++) {
            uint32_t sum = 0;
            for (int i = 0; i < 8; i++)
                if (value >> i & 1) sum ^= bit[byte * 8 + i];
            table[byte][value] = sum;
        }
}

static uint32_t kohort_advance(uint32_t table[4][256], uint32_t crc) {
    return table[0][crc & 0xFF] ^ table[1][(crc >> 8) & 0xFF] ^ table[2][(crc >> 16) & 0xFF] ^ table[3][crc >> 24];
}

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <nmmintrin.h>
#define KOHORT_HAS_SSE42 1

__attribute__((target("sse4.2"))) static const uint8_t *kohort_three(uint64_t *state, const uint8_t *p, size_t block,
                                                                       uint32_t over[4][256]) {
    uint64_t a = *state, b = 0, c = 0;
    const uint8_t *end = p + block;
    while (p < end) {
        a = _mm_crc32_u64(a, kohort_load64(p));
        b = _mm_crc32_u64(b, kohort_load64(p + block));
        c = _mm_crc32_u64(c, kohort_load64(p + 2 * block));
        p += 8;
    }
    a = kohort_advance(over, (uint32_t)a) ^ b;
    *state = kohort_advance(over, (uint32_t)a) ^ c;
    return p + 2 * block;
}

__attribute__((target("sse4.2"))) static uint32_t kohort_crc_sse42(uint32_t crc, const uint8_t *p, size_t n) {
    uint64_t state = crc;
    while (n >= 3 * KOHORT_LONG) {
        p = kohort_three(&state, p, KOHORT_LONG, kohort_over_long);
        n -= 3 * KOHORT_LONG;
    }
    while (n >= 3 * KOHORT_SHORT) {
        p = kohort_three(&state, p, KOHORT_SHORT, kohort_over_short);
        n -= 3 * KOHORT_SHORT;
    }
    for (; n >= 8; n -= 8, p += 8) state = _mm_crc32_u64(state, kohort_load64(p));
    while (n--) state = _mm_crc32_u8((uint32_t)state, *p++);
    return (uint32_t)state;
}
#endif

static void kohort_crc32c_init(void) {
    for (int value = 0; value < 256; value++) {
        uint32_t crc = (uint32_t)value;
        for (int i = 0; i < 8; i++) crc = crc & 1 ? crc >> 1 ^ KOHORT_POLY : crc >> 1;
        kohort_step[0][value] = crc;
    }
    for (int value = 0; value < 256; value++)
        for (int i = 1; i < 8; i++)
            kohort_step[i][value] = kohort_step[i - 1][value] >> 8 ^ kohort_step[0][kohort_step[i - 1][value] & 0xFF];
    kohort_fill_over(kohort_over_long, KOHORT_LONG);
    kohort_fill_over(kohort_over_short, KOHORT_SHORT);
#ifdef KOHORT_HAS_SSE42
    kohort_hardware = __builtin_cpu_supports("sse4.2");
#endif
}

static inline uint32_t kohort_crc32c_on(uint32_t crc, const uint8_t *p, size_t n, int software) {
#ifdef KOHORT_HAS_SSE42
    if (kohort_hardware && !software) return ~kohort_crc_sse42(~crc, p, n);
#endif
    (void)software;
    return ~kohort_crc_tables(~crc, p, n);
}

static inline uint32_t kohort_crc32c(const uint8_t *p, size_t n, int software) {
    return kohort_crc32c_on(0, p, n, software);
}

#endif
