/* Reading and writing the variable-length integers and the fields of a record; no Python in here, so that it may
 * run without the GIL. Every read is checked against the end that the caller gives. */

#ifndef OTTLA_KERNEL_PARSE_H
#define OTTLA_KERNEL_PARSE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The numbers of ottla.records.types.Problem. */
enum problem {
    PROBLEM_NONE = 0,
    BAD_VARINT = 1,
    BAD_RECORD_SIZE = 2,
    FIELD_PAST_END = 3,
    BAD_HEADERS = 4,
    SIZE_MISMATCH = 5,
    TOO_FEW_RECORDS = 6,
    TRAILING_BYTES = 7,
    NEGATIVE_COUNT = 8,
    NO_KEY = 9,
    OFFSET_DELTA = 10,
    BAD_TIMESTAMP = 11,
    TORN = 20,
    BAD_LENGTH = 21,
    OLD_MAGIC = 22,
    UNKNOWN_MAGIC = 23,
    BAD_CRC = 24,
};

#define MIN_RECORD_BYTES 7
#define MAX_VARINT_BYTES 5
#define MAX_VARLONG_BYTES 10

typedef struct {
    const uint8_t *start;
    const uint8_t *end;
    const uint8_t *key_field; /* where the length of the key is */
    const uint8_t *key;
    const uint8_t *value;
    const uint8_t *headers;
    int64_t timestamp_delta;
    int32_t offset_delta;
    int32_t key_len; /* -1: null */
    int32_t value_len;
    int32_t headers_count;
} record_t;

/* A record section under way: `problem` says why `next_record` stopped, PROBLEM_NONE at its proper end. */
typedef struct {
    const uint8_t *p;
    const uint8_t *end;
    int64_t index; /* of the record to come, or of the one that failed */
    int64_t count;
    int problem;
} walk_t;

/* Zigzag int32 of at most five bytes; bits beyond the 32nd are dropped, as Java drops them. NULL if malformed. */
static inline const uint8_t *
read_varint(const uint8_t *p, const uint8_t *end, int32_t *out)
{
    uint32_t raw = 0;
    for (int shift = 0; shift < 35; shift += 7) {
        if (p >= end) {
            return NULL;
        }
        uint8_t byte = *p++;
        raw |= (uint32_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *out = (int32_t)((raw >> 1) ^ (0u - (raw & 1)));
            return p;
        }
    }
    return NULL;
}

static inline const uint8_t *
read_varlong(const uint8_t *p, const uint8_t *end, int64_t *out)
{
    uint64_t raw = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        if (p >= end) {
            return NULL;
        }
        uint8_t byte = *p++;
        raw |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *out = (int64_t)((raw >> 1) ^ (0u - (raw & 1)));
            return p;
        }
    }
    return NULL;
}

/* A nullable field with its length before it; returns where the next one begins, NULL with *problem set. */
static inline const uint8_t *
read_field(const uint8_t *p, const uint8_t *end, const uint8_t **data, int32_t *length, int *problem)
{
    p = read_varint(p, end, length);
    if (p == NULL) {
        *problem = BAD_VARINT;
        return NULL;
    }
    *data = p;
    if (*length < 0) {
        *length = -1;
        return p;
    }
    if (*length > end - p) {
        *problem = FIELD_PAST_END;
        return NULL;
    }
    return p + *length;
}

static inline int
skip_headers(const uint8_t *p, const uint8_t *end, int32_t count)
{
    int problem = PROBLEM_NONE;
    if (count < 0 || count > end - p) {
        return BAD_HEADERS;
    }
    for (int32_t i = 0; i < count; i++) {
        const uint8_t *data;
        int32_t length;
        p = read_field(p, end, &data, &length, &problem);
        if (p == NULL) {
            return problem;
        }
        if (length < 0) {
            return BAD_HEADERS;
        }
        p = read_field(p, end, &data, &length, &problem);
        if (p == NULL) {
            return problem;
        }
    }
    return p == end ? PROBLEM_NONE : SIZE_MISMATCH;
}

static inline int
parse_record(const uint8_t *start, const uint8_t *limit, record_t *r)
{
    int32_t size;
    int problem = PROBLEM_NONE;
    const uint8_t *p = read_varint(start, limit, &size);
    if (p == NULL) {
        return BAD_VARINT;
    }
    if (size < 0 || size > limit - p) {
        return BAD_RECORD_SIZE;
    }
    if (size == 0) {
        return FIELD_PAST_END;
    }
    const uint8_t *end = p + size;
    r->start = start;
    r->end = end;
    p = read_varlong(p + 1, end, &r->timestamp_delta); /* one byte of attributes, which means nothing yet */
    if (p == NULL) {
        return BAD_VARINT;
    }
    p = read_varint(p, end, &r->offset_delta);
    if (p == NULL) {
        return BAD_VARINT;
    }
    r->key_field = p;
    p = read_field(p, end, &r->key, &r->key_len, &problem);
    if (p == NULL) {
        return problem;
    }
    p = read_field(p, end, &r->value, &r->value_len, &problem);
    if (p == NULL) {
        return problem;
    }
    p = read_varint(p, end, &r->headers_count);
    if (p == NULL) {
        return BAD_VARINT;
    }
    r->headers = p;
    return skip_headers(p, end, r->headers_count);
}

static inline walk_t
walk_begin(const uint8_t *p, const uint8_t *end, int64_t count)
{
    walk_t walk = {p, end, 0, count, count < 0 ? NEGATIVE_COUNT : PROBLEM_NONE};
    return walk;
}

/* 1 with the next record in *r, 0 when there is none or the structure is broken. */
static inline int
next_record(walk_t *walk, record_t *r)
{
    if (walk->problem != PROBLEM_NONE) {
        return 0;
    }
    if (walk->index == walk->count) {
        if (walk->p != walk->end) {
            walk->problem = TRAILING_BYTES;
        }
        return 0;
    }
    walk->problem = walk->p == walk->end ? TOO_FEW_RECORDS : parse_record(walk->p, walk->end, r);
    if (walk->problem != PROBLEM_NONE) {
        return 0;
    }
    walk->p = r->end;
    walk->index++;
    return 1;
}

static inline int64_t
wrapping_add(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

static inline int64_t
wrapping_subtract(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a - (uint64_t)b);
}

static inline uint64_t
zigzag(int64_t value)
{
    return ((uint64_t)value << 1) ^ (0u - ((uint64_t)value >> 63));
}

static inline int
varint_size(int64_t value)
{
    uint64_t raw = zigzag(value);
    int size = 1;
    while (raw > 0x7F) {
        raw >>= 7;
        size++;
    }
    return size;
}

static inline uint8_t *
write_varint(uint8_t *p, int64_t value)
{
    uint64_t raw = zigzag(value);
    while (raw > 0x7F) {
        *p++ = (uint8_t)(raw | 0x80);
        raw >>= 7;
    }
    *p++ = (uint8_t)raw;
    return p;
}

static inline uint16_t
load16(const uint8_t *p)
{
    return (uint16_t)(p[0] << 8 | p[1]);
}

static inline uint32_t
load32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline uint64_t
load64(const uint8_t *p)
{
    return (uint64_t)load32(p) << 32 | load32(p + 4);
}

#endif
