/* Records to Arrow's buffers: what ColumnBuilder does between its arguments and its answer. No Python object is
 * touched in here, so that it may run without the GIL. Included once, by _kernel.c.
 *
 * Room for all that a section can bring is made before its first record, so the loop over the records only copies.
 * A section that fails leaves the columns as they were. */

#ifndef OTTLA_KERNEL_COLUMNS_H
#define OTTLA_KERNEL_COLUMNS_H

#include "_kernel_utf8.h"

#define COLUMN_ROW_BYTES 28 /* offset, timestamp, its type, and the offsets of key and value */
#define ATTRIBUTE_CODEC 0x07
#define ATTRIBUTE_LOG_APPEND_TIME 0x08
#define ATTRIBUTE_TRANSACTIONAL 0x10
#define ATTRIBUTE_CONTROL 0x20

enum added { ADDED = 0, ADD_BAD_RECORD, ADD_OVERFLOW, ADD_NO_MEMORY };

/* A buffer that grows, and how much it held when it was last handed out: the best guess at what it will hold. */
typedef struct {
    out_t out;
    size_t hint;
} grow_t;

typedef struct {
    grow_t offsets; /* int32, one more than there are rows */
    grow_t data;
    grow_t bits; /* validity; kept whether or not anything is null, because that is cheaper than asking */
    int64_t nulls;
} bin_builder_t;

typedef struct {
    int64_t rows;
    int64_t headers;
    int64_t max_data;
    int with_headers;
    bin_builder_t key;
    bin_builder_t value;
    bin_builder_t lists; /* without data of its own: its offsets count headers */
    bin_builder_t header_key;
    bin_builder_t header_value;
    grow_t offsets;
    grow_t timestamps;
    grow_t types;
} builder_t;

typedef struct {
    int64_t base_offset;
    int64_t base_timestamp;
    int64_t log_append_time;
    int has_log_append_time;
    int64_t first_offset;
    int64_t end_offset;
} section_t;

/* Room for `size` bytes in all; 0, or -1 if there is no memory. */
static inline int
grow_to(grow_t *grow, size_t size)
{
    if (size <= grow->out.capacity && grow->out.data != NULL) {
        return 0;
    }
    size_t wanted = grow->out.data == NULL && grow->hint > size ? grow->hint : size;
    grow->out.length = 0;
    return out_reserve(&grow->out, wanted == 0 ? 1 : wanted) == NULL ? -1 : 0;
}

static inline int32_t *
bin_offsets(const bin_builder_t *bin)
{
    return (int32_t *)(void *)bin->offsets.out.data;
}

static inline size_t
bin_length(const bin_builder_t *bin, int64_t rows)
{
    return bin->offsets.out.data == NULL ? 0 : (size_t)bin_offsets(bin)[rows];
}

static int
bin_reserve(bin_builder_t *bin, int64_t rows, size_t data)
{
    int fresh = bin->offsets.out.data == NULL;
    if (grow_to(&bin->offsets, (size_t)(rows + 1) * sizeof(int32_t)) < 0) {
        return -1;
    }
    if (fresh) { /* at once: if there is no memory for the rest, the offsets are there all the same */
        bin_offsets(bin)[0] = 0;
    }
    return grow_to(&bin->data, data) < 0 || grow_to(&bin->bits, (size_t)(rows + 7) / 8) < 0 ? -1 : 0;
}

static inline void
bin_set_valid(bin_builder_t *bin, int64_t row, int valid)
{
    uint8_t *byte = bin->bits.out.data + (row >> 3);
    uint8_t before = (row & 7) == 0 ? 0 : *byte;
    *byte = (uint8_t)(before | valid << (row & 7));
    bin->nulls += !valid;
}

static inline void
bin_add(bin_builder_t *bin, int64_t row, const uint8_t *data, int32_t length)
{
    int32_t *offsets = bin_offsets(bin) + row;
    int32_t taken = length < 0 ? 0 : length;
    memcpy(bin->data.out.data + offsets[0], data, (size_t)taken);
    offsets[1] = offsets[0] + taken;
    bin_set_valid(bin, row, length >= 0);
}

/* Forget the rows from `rows` on; `nulls` is how many there were before them. */
static void
bin_cut(bin_builder_t *bin, int64_t rows, int64_t nulls)
{
    if ((rows & 7) != 0) {
        bin->bits.out.data[rows >> 3] &= (uint8_t)((1 << (rows & 7)) - 1);
    }
    bin->nulls = nulls;
}

static int64_t
builder_size(const builder_t *b)
{
    int64_t total = b->rows * COLUMN_ROW_BYTES + (int64_t)bin_length(&b->key, b->rows) +
                    (int64_t)bin_length(&b->value, b->rows);
    if (b->with_headers) {
        total += 4 * b->rows + 8 * b->headers + (int64_t)bin_length(&b->header_key, b->headers) +
                 (int64_t)bin_length(&b->header_value, b->headers);
    }
    return total;
}

/* Room for one section more, if int32 offsets can count what it may bring. */
static int
builder_reserve(builder_t *b, int64_t size, int64_t count)
{
    int64_t key = (int64_t)bin_length(&b->key, b->rows), value = (int64_t)bin_length(&b->value, b->rows);
    int64_t header = (int64_t)bin_length(&b->header_value, b->headers);
    int64_t fullest = key > value ? key : value;
    fullest = header > fullest ? header : fullest;
    int64_t most = size / MIN_RECORD_BYTES;
    int64_t rows = b->rows + (count < 0 ? 0 : count < most ? count : most);
    if (size > b->max_data - fullest || rows >= MAX_INT32) {
        return ADD_OVERFLOW;
    }
    if (bin_reserve(&b->key, rows, (size_t)(key + size)) < 0 ||
        bin_reserve(&b->value, rows, (size_t)(value + size)) < 0 ||
        grow_to(&b->offsets, (size_t)rows * sizeof(int64_t)) < 0 ||
        grow_to(&b->timestamps, (size_t)rows * sizeof(int64_t)) < 0 ||
        grow_to(&b->types, (size_t)rows * sizeof(int32_t)) < 0) {
        return ADD_NO_MEMORY;
    }
    if (b->with_headers && (bin_reserve(&b->lists, rows, 0) < 0 || bin_reserve(&b->header_key, b->headers, 0) < 0 ||
                            bin_reserve(&b->header_value, b->headers, (size_t)(header + size)) < 0)) {
        return ADD_NO_MEMORY;
    }
    return ADDED;
}

static int
add_header(builder_t *b, int64_t index, const uint8_t **p, const uint8_t *end)
{
    const uint8_t *key = NULL, *value = NULL;
    int32_t key_len = 0, value_len = 0;
    int problem;
    const uint8_t *next = read_field(*p, end, &key, &key_len, &problem);
    next = next == NULL ? NULL : read_field(next, end, &value, &value_len, &problem);
    if (next == NULL || key_len < 0) {
        return ADD_BAD_RECORD; /* the walk has been through here: somebody wrote meanwhile */
    }
    *p = next;
    size_t held = bin_length(&b->header_key, index);
    if (bin_reserve(&b->header_key, index + 1, held + UTF8_MAX_GROWTH * (size_t)key_len) < 0) {
        return ADD_NO_MEMORY;
    }
    size_t mended = utf8_mend(b->header_key.data.out.data + held, key, (size_t)key_len);
    if ((int64_t)mended > b->max_data - (int64_t)held) {
        return ADD_OVERFLOW;
    }
    bin_offsets(&b->header_key)[index + 1] = (int32_t)(held + mended);
    bin_add(&b->header_value, index, value, value_len);
    return ADDED;
}

static int
add_headers(builder_t *b, int64_t row, const record_t *r, int64_t *headers)
{
    const uint8_t *p = r->headers;
    if (*headers + r->headers_count >= MAX_INT32) {
        return ADD_OVERFLOW;
    }
    if (bin_reserve(&b->header_value, *headers + r->headers_count, 0) < 0) {
        return ADD_NO_MEMORY;
    }
    for (int32_t i = 0; i < r->headers_count; i++) {
        int status = add_header(b, *headers + i, &p, r->end);
        if (status != ADDED) {
            return status;
        }
    }
    *headers += r->headers_count;
    bin_offsets(&b->lists)[row + 1] = (int32_t)*headers;
    bin_set_valid(&b->lists, row, r->headers_count > 0);
    return ADDED;
}

static inline int64_t
to_microseconds(int64_t timestamp)
{
    const int64_t most = INT64_MAX / 1000;
    return timestamp > most ? INT64_MAX : timestamp < -most ? INT64_MIN : timestamp * 1000;
}

static inline void
add_numbers(builder_t *b, int64_t row, int64_t offset, int64_t timestamp, int32_t type)
{
    ((int64_t *)(void *)b->offsets.out.data)[row] = offset;
    ((int64_t *)(void *)b->timestamps.out.data)[row] = to_microseconds(timestamp);
    ((int32_t *)(void *)b->types.out.data)[row] = type;
}

static int
add_rows(builder_t *b, walk_t *walk, const section_t *s, int64_t *rows, int64_t *headers)
{
    record_t r;
    while (next_record(walk, &r)) {
        int64_t offset = wrapping_add(s->base_offset, r.offset_delta);
        if (offset < s->first_offset || offset >= s->end_offset) {
            continue;
        }
        bin_add(&b->key, *rows, r.key, r.key_len);
        bin_add(&b->value, *rows, r.value, r.value_len);
        int64_t timestamp =
            s->has_log_append_time ? s->log_append_time : wrapping_add(s->base_timestamp, r.timestamp_delta);
        add_numbers(b, *rows, offset, timestamp, s->has_log_append_time);
        if (b->with_headers) {
            int status = add_headers(b, *rows, &r, headers);
            if (status != ADDED) {
                return status;
            }
        }
        ++*rows;
    }
    return walk->problem == PROBLEM_NONE ? ADDED : ADD_BAD_RECORD;
}

static int
builder_add(builder_t *b, walk_t *walk, const section_t *s)
{
    int64_t rows = b->rows, headers = b->headers;
    const int64_t nulls[4] = {b->key.nulls, b->value.nulls, b->lists.nulls, b->header_value.nulls};
    int status = builder_reserve(b, walk->end - walk->p, walk->count);
    if (status != ADDED) {
        return status;
    }
    status = add_rows(b, walk, s, &rows, &headers);
    if (status == ADDED) {
        b->rows = rows;
        b->headers = headers;
        return ADDED;
    }
    bin_cut(&b->key, b->rows, nulls[0]);
    bin_cut(&b->value, b->rows, nulls[1]);
    if (b->with_headers) {
        bin_cut(&b->lists, b->rows, nulls[2]);
        bin_cut(&b->header_value, b->headers, nulls[3]);
    }
    return status;
}

/* ---- many batches at once ---- */

typedef struct {
    int64_t first_offset;
    int64_t end_offset;
    int64_t max_rows;
    int64_t max_bytes;
    int check_crcs;
    int transactional;
} batches_t;

/* Where the next batch begins, or `p` if this one is not for here. */
static const uint8_t *
builder_add_batch(builder_t *b, const uint8_t *p, const uint8_t *end, const batches_t *limits, int *status)
{
    if (header_problem(p, end) != PROBLEM_NONE) {
        return p;
    }
    header_t h = read_header(p);
    const uint8_t *stop = p + LOG_OVERHEAD + h.length;
    if ((h.attributes & (ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL)) && !limits->transactional) {
        return p;
    }
    if ((h.attributes & ATTRIBUTE_CONTROL) || h.base_offset >= limits->end_offset ||
        wrapping_add(h.base_offset, h.last_offset_delta) < limits->first_offset) {
        return stop;
    }
    if (h.attributes & ATTRIBUTE_CODEC) {
        return p;
    }
    if (limits->check_crcs && crc32c_of(0, p + CRC_START, (size_t)(stop - p) - CRC_START) != h.crc) {
        return p;
    }
    section_t s = {
        .base_offset = h.base_offset,
        .base_timestamp = h.base_timestamp,
        .log_append_time = h.max_timestamp,
        .has_log_append_time = (h.attributes & ATTRIBUTE_LOG_APPEND_TIME) != 0,
        .first_offset = limits->first_offset,
        .end_offset = limits->end_offset,
    };
    walk_t walk = walk_begin(p + HEADER_BYTES, stop, h.count);
    *status = builder_add(b, &walk, &s);
    return *status == ADDED ? stop : p;
}

static const uint8_t *
builder_add_batches(builder_t *b, const uint8_t *p, const uint8_t *end, const batches_t *limits, int *status)
{
    while (p < end && b->rows < limits->max_rows && builder_size(b) < limits->max_bytes) {
        const uint8_t *after = builder_add_batch(b, p, end, limits, status);
        if (after == p) {
            break;
        }
        p = after;
    }
    return p;
}

#endif
