/* Mending text that is not UTF-8, as Python's "replace" does: each maximal beginning of a character that goes wrong
 * becomes one U+FFFD. No Python in here, so that it may run without the GIL. */

#ifndef OTTLA_KERNEL_UTF8_H
#define OTTLA_KERNEL_UTF8_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define UTF8_MAX_GROWTH 3 /* one bad byte becomes the three of U+FFFD */

/* The bytes of the character at `p`, or of what is to be replaced if *valid is 0; p < end. */
static inline size_t
utf8_step(const uint8_t *p, const uint8_t *end, int *valid)
{
    uint8_t lead = *p, lowest = 0x80, highest = 0xBF;
    size_t length = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
    *valid = length != 0;
    lowest = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : lowest;  /* no overlong forms */
    highest = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : highest; /* no surrogates, nothing past U+10FFFF */
    for (size_t i = 1; i < length; i++) {
        if (p + i == end || p[i] < lowest || p[i] > highest) {
            *valid = 0;
            return i;
        }
        lowest = 0x80;
        highest = 0xBF;
    }
    return length == 0 ? 1 : length;
}

static inline int
utf8_is_ascii(const uint8_t *p, size_t length)
{
    uint8_t all = 0;
    for (size_t i = 0; i < length; i++) {
        all |= p[i];
    }
    return all < 0x80;
}

/* `out` has room for three times the length; returns how many bytes were written. */
static size_t
utf8_mend(uint8_t *out, const uint8_t *p, size_t length)
{
    if (utf8_is_ascii(p, length)) {
        memcpy(out, p, length);
        return length;
    }
    uint8_t *start = out;
    const uint8_t *end = p + length;
    while (p < end) {
        int valid;
        size_t step = utf8_step(p, end, &valid);
        size_t written = valid ? step : 3;
        memcpy(out, valid ? p : (const uint8_t *)"\xEF\xBF\xBD", written);
        out += written;
        p += step;
    }
    return (size_t)(out - start);
}

#endif
