/* CRC-32C (Castagnoli), with the processor's own instruction where it has one.
 *
 * The instruction takes eight bytes in three cycles but can start one every cycle, so long input is worked on in
 * three lanes at once, and the lanes are joined by multiplying with a power of x (a table look-up). */

#ifndef OTTLA_KERNEL_CRC32C_H
#define OTTLA_KERNEL_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define OTTLA_CRC_X86 1
#include <nmmintrin.h>
#elif defined(__aarch64__) && (defined(__linux__) || defined(__APPLE__))
#define OTTLA_CRC_ARM 1
#if defined(__linux__)
#include <sys/auxv.h>
#endif
#endif

#define CRC_POLYNOMIAL 0x82F63B78u /* reflected */
#define CRC_LONG_LANE 4096
#define CRC_SHORT_LANE 256

typedef uint32_t (*crc_function)(uint32_t, const uint8_t *, size_t);

static uint32_t crc_bytes[8][256];
static uint32_t crc_long_shift[4][256];
static uint32_t crc_short_shift[4][256];

/* a * b modulo the polynomial, bits reflected: x^0 is the highest bit. */
static uint32_t
crc_multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
        if (a & bit) {
            product ^= b;
        }
        b = (b & 1) ? (b >> 1) ^ CRC_POLYNOMIAL : b >> 1;
    }
    return product;
}

/* x^(8 * bytes): what a CRC is multiplied with when that many zero bytes follow. */
static uint32_t
crc_power(size_t bytes)
{
    uint32_t power = 0x80000000u;  /* x^0 */
    uint32_t square = 0x00800000u; /* x^8 */
    for (; bytes != 0; bytes >>= 1) {
        if (bytes & 1) {
            power = crc_multiply(power, square);
        }
        square = crc_multiply(square, square);
    }
    return power;
}

static void
crc_fill_shift(uint32_t table[4][256], size_t bytes)
{
    uint32_t power = crc_power(bytes);
    for (int slice = 0; slice < 4; slice++) {
        for (int bit = 0; bit < 8; bit++) {
            table[slice][1 << bit] = crc_multiply(power, (uint32_t)1 << (8 * slice + bit));
        }
        for (int value = 1; value < 256; value++) {
            int low = value & -value;
            if (value != low) {
                table[slice][value] = table[slice][low] ^ table[slice][value ^ low];
            }
        }
    }
}

static void
crc_fill_bytes(void)
{
    for (uint32_t value = 0; value < 256; value++) {
        uint32_t crc = value;
        for (int bit = 0; bit < 8; bit++) {
            crc = (crc & 1) ? (crc >> 1) ^ CRC_POLYNOMIAL : crc >> 1;
        }
        crc_bytes[0][value] = crc;
    }
    for (int slice = 1; slice < 8; slice++) {
        for (int value = 0; value < 256; value++) {
            uint32_t before = crc_bytes[slice - 1][value];
            crc_bytes[slice][value] = (before >> 8) ^ crc_bytes[0][before & 0xFF];
        }
    }
}

static inline uint64_t
crc_load(const uint8_t *p)
{
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

/* Eight bytes a step by table; composed byte by byte, so that byte order does not matter. */
static uint32_t
crc_software(uint32_t crc, const uint8_t *p, size_t length)
{
    for (; length >= 8; p += 8, length -= 8) {
        uint32_t low = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        crc = crc_bytes[7][low & 0xFF] ^ crc_bytes[6][low >> 8 & 0xFF] ^ crc_bytes[5][low >> 16 & 0xFF] ^
              crc_bytes[4][low >> 24] ^ crc_bytes[3][p[4]] ^ crc_bytes[2][p[5]] ^ crc_bytes[1][p[6]] ^
              crc_bytes[0][p[7]];
    }
    for (; length > 0; p++, length--) {
        crc = (crc >> 8) ^ crc_bytes[0][(crc ^ *p) & 0xFF];
    }
    return crc;
}

#if defined(OTTLA_CRC_X86) || defined(OTTLA_CRC_ARM)

static inline uint32_t
crc_shift(uint32_t table[4][256], uint32_t crc)
{
    return table[0][crc & 0xFF] ^ table[1][crc >> 8 & 0xFF] ^ table[2][crc >> 16 & 0xFF] ^ table[3][crc >> 24];
}

#if defined(OTTLA_CRC_X86)
#define CRC_TARGET __attribute__((target("sse4.2")))
#define CRC_STEP8(crc, word) ((uint32_t)_mm_crc32_u64((crc), (word)))
#define CRC_STEP1(crc, byte) (_mm_crc32_u8((crc), (byte)))
#else
#define CRC_TARGET
static inline uint32_t
crc_arm8(uint32_t crc, uint64_t word)
{
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
    return crc;
}
static inline uint32_t
crc_arm1(uint32_t crc, uint32_t byte)
{
    __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"(byte));
    return crc;
}
#define CRC_STEP8(crc, word) crc_arm8((crc), (word))
#define CRC_STEP1(crc, byte) crc_arm1((crc), (byte))
#endif

#define CRC_THREE_LANES(crc, p, length, lane, table)                                                        \
    while ((length) >= 3 * (lane)) {                                                                        \
        uint32_t second = 0, third = 0;                                                                     \
        for (const uint8_t *stop = (p) + (lane); (p) < stop; (p) += 8) {                                    \
            (crc) = CRC_STEP8((crc), crc_load(p));                                                          \
            second = CRC_STEP8(second, crc_load((p) + (lane)));                                             \
            third = CRC_STEP8(third, crc_load((p) + 2 * (lane)));                                           \
        }                                                                                                   \
        (crc) = crc_shift((table), crc_shift((table), (crc)) ^ second) ^ third;                             \
        (p) += 2 * (lane);                                                                                  \
        (length) -= 3 * (lane);                                                                             \
    }

CRC_TARGET static uint32_t
crc_hardware(uint32_t crc, const uint8_t *p, size_t length)
{
    CRC_THREE_LANES(crc, p, length, CRC_LONG_LANE, crc_long_shift)
    CRC_THREE_LANES(crc, p, length, CRC_SHORT_LANE, crc_short_shift)
    for (; length >= 8; p += 8, length -= 8) {
        crc = CRC_STEP8(crc, crc_load(p));
    }
    for (; length > 0; p++, length--) {
        crc = CRC_STEP1(crc, *p);
    }
    return crc;
}

static int
crc_hardware_present(void)
{
#if defined(OTTLA_CRC_X86)
    return __builtin_cpu_supports("sse4.2");
#elif defined(__APPLE__)
    return 1; /* every Apple processor of this architecture has it */
#else
    return (getauxval(AT_HWCAP) & (1ul << 7)) != 0; /* HWCAP_CRC32 */
#endif
}

#else
#define crc_hardware crc_software
#define crc_hardware_present() 0
#endif

static crc_function crc_chosen = crc_software;

static void
crc_initialize(void)
{
    crc_fill_bytes();
    crc_fill_shift(crc_long_shift, CRC_LONG_LANE);
    crc_fill_shift(crc_short_shift, CRC_SHORT_LANE);
    crc_chosen = crc_hardware_present() ? crc_hardware : crc_software;
}

static inline uint32_t
crc32c_of(uint32_t value, const uint8_t *p, size_t length)
{
    return ~crc_chosen(~value, p, length);
}

#endif
