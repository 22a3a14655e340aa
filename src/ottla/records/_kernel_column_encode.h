/* Arrow's buffers to records: murmur2_partitions, split_rows, encode_columns. Included once, by _kernel.c. */

#ifndef OTTLA_KERNEL_COLUMN_ENCODE_H
#define OTTLA_KERNEL_COLUMN_ENCODE_H

#define MAX_PARTITIONS (1 << 20)
#define LARGE_ROWS (LARGE_BYTES / 4)

static int
as_partitions(PyObject *object, int64_t *out)
{
    if (as_int64(object, out) < 0) {
        return -1;
    }
    if (*out < 1 || *out > MAX_PARTITIONS) {
        PyErr_Format(PyExc_ValueError, "%lld partitions: 1 to %d are possible", (long long)*out, MAX_PARTITIONS);
        return -1;
    }
    return 0;
}

/* ---- which partition ---- */

/* Java's Utils.murmur2. */
static uint32_t
murmur2(const uint8_t *p, uint32_t length)
{
    const uint32_t m = 0x5BD1E995u;
    uint32_t h = 0x9747B28Cu ^ length;
    for (; length >= 4; p += 4, length -= 4) {
        uint32_t k = ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24) * m;
        k ^= k >> 24;
        h = (h * m) ^ (k * m);
    }
    if (length > 0) {
        h ^= (uint32_t)p[0] | (length > 1 ? (uint32_t)p[1] << 8 : 0) | (length > 2 ? (uint32_t)p[2] << 16 : 0);
        h *= m;
    }
    h ^= h >> 13;
    h *= m;
    return h ^ (h >> 15);
}

/* How many of the rows have no key. */
static int64_t
hash_rows(const column_t *key, const order_t *order, int32_t partitions, uint8_t *ids, fault_t *f)
{
    int64_t keyless = 0;
    for (int64_t place = 0; place < order->count; place++) {
        const uint8_t *data;
        int32_t length;
        int64_t row = order_row(order, place, key->rows, f);
        if (row < 0) {
            break;
        }
        if (load_int32(ids + 4 * row) >= 0) {
            continue;
        }
        if (column_bytes(key, row, &data, &length, f) < 0) {
            break;
        }
        int32_t partition = length < 0 ? -1 : (int32_t)(murmur2(data, (uint32_t)length) & MAX_INT32) % partitions;
        keyless += length < 0;
        memcpy(ids + 4 * row, &partition, 4);
    }
    return keyless;
}

static PyObject *
hash_all(const column_t *key, const order_t *order, int32_t partitions, const Py_buffer *ids)
{
    fault_t f = {0};
    int64_t keyless;
    if (ids->len / 4 != key->rows) {
        PyErr_Format(PyExc_ValueError, "%zd bytes of partition ids for %lld rows", ids->len, (long long)key->rows);
        return NULL;
    }
    if (key->limit >= LARGE_BYTES || order->count >= LARGE_ROWS) {
        Py_BEGIN_ALLOW_THREADS
        keyless = hash_rows(key, order, partitions, ids->buf, &f);
        Py_END_ALLOW_THREADS
    }
    else {
        keyless = hash_rows(key, order, partitions, ids->buf, &f);
    }
    return f.kind != NO_FAULT ? raise_fault(&f) : PyLong_FromLongLong(keyless);
}

static PyObject *
kernel_murmur2_partitions(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    column_t key = {0};
    order_t order = {0};
    Py_buffer ids = {0};
    int64_t partitions, count;
    PyObject *result = NULL;
    if (expect_arguments("murmur2_partitions", nargs, 4, 4) < 0 || as_partitions(args[2], &partitions) < 0) {
        return NULL;
    }
    if (open_column(args[0], &key) == 0 && open_ints(args[3], &ids, PyBUF_WRITABLE, &count) == 0 &&
        open_order(args[1], &order, key.rows) == 0) {
        result = hash_all(&key, &order, (int32_t)partitions, &ids);
    }
    column_close(&key);
    PyBuffer_Release(&ids);
    PyBuffer_Release(&order.view);
    return result;
}

/* ---- rows by partition: a counting sort ---- */

typedef struct {
    const uint8_t *ids;
    int64_t rows;
    int64_t partitions;
    int64_t keyless;
    int64_t *bounds; /* partitions + 1 of them, zeroed */
    uint8_t *order;
} split_t;

/* The partition of the row at a place, -1 at fault. */
static inline int64_t
split_partition(const split_t *s, const order_t *chosen, int64_t place, int64_t *row, fault_t *f)
{
    *row = order_row(chosen, place, s->rows, f);
    if (*row < 0) {
        return -1;
    }
    int64_t partition = load_int32(s->ids + 4 * *row);
    partition = partition == -1 ? s->keyless : partition;
    if (partition < 0 || partition >= s->partitions) {
        *f = (fault_t){FAULT_PARTITION, *row, partition, 0, s->partitions};
        return -1;
    }
    return partition;
}

/* Count, then place: while rows are placed bounds[p + 1] runs from where p begins to where it ends. */
static void
split_all(const split_t *s, const order_t *chosen, fault_t *f)
{
    int64_t row, running = 0;
    for (int64_t place = 0; place < chosen->count; place++) {
        int64_t partition = split_partition(s, chosen, place, &row, f);
        if (partition < 0) {
            return;
        }
        s->bounds[partition + 1]++;
    }
    for (int64_t p = 1; p <= s->partitions; p++) {
        int64_t count = s->bounds[p];
        s->bounds[p] = running;
        running += count;
    }
    for (int64_t place = 0; place < chosen->count; place++) {
        int64_t partition = split_partition(s, chosen, place, &row, f);
        int64_t at = partition < 0 ? -1 : s->bounds[partition + 1]++;
        if (at < 0 || at >= chosen->count) { /* the ids were others a moment ago */
            f->kind = FAULT_CHANGED;
            return;
        }
        int32_t number = (int32_t)row;
        memcpy(s->order + 4 * at, &number, 4);
    }
}

static PyObject *
split_result(PyObject *module, split_t *s, const order_t *chosen)
{
    kernel_state *state = PyModule_GetState(module);
    fault_t f = {0};
    if (find_column_types(state) < 0) {
        return NULL;
    }
    PyObject *order = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)chosen->count * 4);
    if (order == NULL) {
        return NULL;
    }
    s->order = (uint8_t *)PyBytes_AS_STRING(order);
    if (chosen->count >= LARGE_ROWS) {
        Py_BEGIN_ALLOW_THREADS
        split_all(s, chosen, &f);
        Py_END_ALLOW_THREADS
    }
    else {
        split_all(s, chosen, &f);
    }
    if (f.kind != NO_FAULT) {
        Py_DECREF(order);
        return raise_fault(&f);
    }
    PyObject *items[2] = {order, pack_integers(s->bounds, (Py_ssize_t)s->partitions + 1)};
    return pack_named(state->row_split_type, items, 2);
}

static PyObject *
kernel_split_rows(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    split_t s = {.keyless = -1};
    order_t chosen = {0};
    Py_buffer ids = {0};
    PyObject *result = NULL;
    if (expect_arguments("split_rows", nargs, 3, 4) < 0 || as_partitions(args[2], &s.partitions) < 0 ||
        (nargs > 3 && as_int64(args[3], &s.keyless) < 0)) {
        return NULL;
    }
    if (s.keyless < -1 || s.keyless >= s.partitions) {
        PyErr_Format(PyExc_ValueError, "%lld is not one of %lld partitions", (long long)s.keyless,
                     (long long)s.partitions);
        return NULL;
    }
    if (open_ints(args[0], &ids, PyBUF_SIMPLE, &s.rows) == 0 && open_order(args[1], &chosen, s.rows) == 0) {
        s.ids = ids.buf;
        s.bounds = PyMem_RawCalloc((size_t)s.partitions + 1, sizeof(int64_t));
        result = s.bounds == NULL ? PyErr_NoMemory() : split_result(module, &s, &chosen);
        PyMem_RawFree(s.bounds);
    }
    PyBuffer_Release(&ids);
    PyBuffer_Release(&chosen.view);
    return result;
}

/* ---- rows to records ---- */

/* What is read of one row before it is measured and written. */
typedef struct {
    const uint8_t *key;
    const uint8_t *value;
    int32_t key_len; /* -1: null */
    int32_t value_len;
    int32_t headers_start;
    int32_t headers_end;
} row_t;

static inline int64_t
field_size(int32_t length)
{
    return length < 0 ? 1 : varint_size(length) + (int64_t)length;
}

/* A header of a row: a struct that is null has no key either. */
static inline int
read_header_item(const header_column_t *h, int64_t row, int64_t item, row_t *out, fault_t *f)
{
    out->key_len = -1;
    if (bit_at(h->item_bits, h->item_offset + item) &&
        column_bytes(&h->key, item, &out->key, &out->key_len, f) < 0) {
        return -1;
    }
    if (out->key_len < 0) {
        *f = (fault_t){FAULT_HEADER_KEY, row, 0, 0, 0};
        return -1;
    }
    return column_bytes(&h->value, item, &out->value, &out->value_len, f);
}

/* The bytes of a row's headers with their number, -1 at fault. */
static int64_t
headers_size(const header_column_t *h, int64_t row, const row_t *r, fault_t *f)
{
    int64_t total = varint_size(r->headers_end - r->headers_start);
    for (int64_t item = r->headers_start; item < r->headers_end; item++) {
        row_t header;
        if (read_header_item(h, row, item, &header, f) < 0) {
            return -1;
        }
        total += field_size(header.key_len) + field_size(header.value_len);
    }
    return total;
}

/* The bytes of a record's body, -1 at fault. */
static inline int64_t
measure_row(const row_columns_t *c, int64_t row, int64_t delta, row_t *r, fault_t *f)
{
    r->key = NULL;
    r->key_len = -1;
    r->headers_start = r->headers_end = 0;
    if ((c->has_key && column_bytes(&c->key, row, &r->key, &r->key_len, f) < 0) ||
        column_bytes(&c->value, row, &r->value, &r->value_len, f) < 0) {
        return -1;
    }
    int64_t headers = 1;
    if (c->has_headers) {
        if (column_span(&c->headers.lists, row, &r->headers_start, &r->headers_end, f) < 0) {
            return -1;
        }
        headers = headers_size(&c->headers, row, r, f);
    }
    /* attributes and the timestamp's delta are a byte each */
    return headers < 0 ? -1 : 2 + varint_size(delta) + field_size(r->key_len) + field_size(r->value_len) + headers;
}

static inline uint8_t *
write_field(uint8_t *p, const uint8_t *data, int32_t length)
{
    p = write_varint(p, length);
    if (length > 0) {
        memcpy(p, data, (size_t)length);
        p += length;
    }
    return p;
}

/* NULL at fault: the headers have been measured, so they take no more than up to `end` unless somebody wrote. */
static uint8_t *
write_headers(uint8_t *p, const uint8_t *end, const header_column_t *h, int64_t row, const row_t *r, fault_t *f)
{
    p = write_varint(p, r->headers_end - r->headers_start);
    for (int64_t item = r->headers_start; item < r->headers_end; item++) {
        row_t header;
        if (read_header_item(h, row, item, &header, f) < 0) {
            return NULL;
        }
        if (field_size(header.key_len) + field_size(header.value_len) > end - p) {
            f->kind = FAULT_CHANGED;
            return NULL;
        }
        p = write_field(p, header.key, header.key_len);
        p = write_field(p, header.value, header.value_len);
    }
    return p;
}

typedef struct {
    const row_columns_t *columns;
    const order_t *order;
    int64_t start;
    int64_t stop;
    int64_t max_bytes;
    fault_t fault;
} encode_t;

/* How far the section goes, and in *size how long it is. */
static int64_t
plan_section(encode_t *e, int64_t *size)
{
    *size = HEADER_BYTES;
    for (int64_t place = e->start; place < e->stop; place++) {
        row_t r;
        int64_t row = order_row(e->order, place, e->columns->value.rows, &e->fault);
        int64_t body = row < 0 ? -1 : measure_row(e->columns, row, place - e->start, &r, &e->fault);
        if (body < 0) {
            return place;
        }
        int64_t total = *size + varint_size(body) + body;
        if (total > e->max_bytes && place > e->start) {
            return place;
        }
        if (total > MAX_INT32) {
            e->fault = (fault_t){FAULT_TOO_LARGE, row, 0, 0, 0};
            return place;
        }
        *size = total;
    }
    return e->stop;
}

static void
write_section(encode_t *e, uint8_t *p, int64_t size, int64_t next)
{
    const uint8_t *end = p + size;
    memset(p, 0, HEADER_BYTES);
    p += HEADER_BYTES;
    for (int64_t place = e->start; place < next && p != NULL; place++) {
        row_t r;
        int64_t delta = place - e->start;
        int64_t row = order_row(e->order, place, e->columns->value.rows, &e->fault);
        int64_t body = row < 0 ? -1 : measure_row(e->columns, row, delta, &r, &e->fault);
        if (body < 0) {
            return;
        }
        if (varint_size(body) + body > end - p) {
            break;
        }
        p = write_varint(p, body);
        const uint8_t *record_end = p + body;
        *p++ = 0; /* attributes */
        *p++ = 0; /* the timestamp's delta */
        p = write_varint(p, delta);
        p = write_field(p, r.key, r.key_len);
        p = write_field(p, r.value, r.value_len);
        if (e->columns->has_headers) {
            p = write_headers(p, record_end, &e->columns->headers, row, &r, &e->fault);
        }
        else {
            *p++ = 0;
        }
    }
    if (p != end && e->fault.kind == NO_FAULT) {
        e->fault.kind = FAULT_CHANGED;
    }
}

static PyObject *
encode_section(encode_t *e)
{
    int64_t size, next;
    int large = e->columns->value.limit >= LARGE_BYTES && e->max_bytes >= LARGE_BYTES;
    if (large) {
        Py_BEGIN_ALLOW_THREADS
        next = plan_section(e, &size);
        Py_END_ALLOW_THREADS
    }
    else {
        next = plan_section(e, &size);
    }
    if (e->fault.kind != NO_FAULT) {
        return raise_fault(&e->fault);
    }
    PyObject *section = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (section == NULL) {
        return NULL;
    }
    uint8_t *out = (uint8_t *)PyByteArray_AS_STRING(section);
    if (size >= LARGE_BYTES) {
        Py_BEGIN_ALLOW_THREADS
        write_section(e, out, size, next);
        Py_END_ALLOW_THREADS
    }
    else {
        write_section(e, out, size, next);
    }
    if (e->fault.kind != NO_FAULT) {
        Py_DECREF(section);
        return raise_fault(&e->fault);
    }
    return Py_BuildValue("NL", section, (long long)next);
}

static PyObject *
kernel_encode_columns(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    row_columns_t columns = {0};
    order_t order = {0};
    encode_t e = {.columns = &columns, .order = &order};
    PyObject *result = NULL;
    if (expect_arguments("encode_columns", nargs, 5, 5) < 0 || as_int64(args[2], &e.start) < 0 ||
        as_int64(args[3], &e.stop) < 0 || as_int64(args[4], &e.max_bytes) < 0) {
        return NULL;
    }
    e.max_bytes = e.max_bytes > MAX_INT32 ? MAX_INT32 : e.max_bytes;
    if (open_row_columns(args[0], &columns) == 0 && open_order(args[1], &order, columns.value.rows) == 0) {
        if (e.start < 0 || e.start > e.stop || e.stop > order.count) {
            PyErr_Format(PyExc_ValueError, "range [%lld, %lld) does not lie in %lld rows", (long long)e.start,
                         (long long)e.stop, (long long)order.count);
        }
        else {
            result = encode_section(&e);
        }
    }
    row_columns_close(&columns);
    PyBuffer_Release(&order.view);
    return result;
}

#endif
