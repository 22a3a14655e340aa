/* Python objects to records: encode_records. Records to records: rebuild_records for the cleaner, renumber_records for
 * recompression.
 * Sequences are taken as tuples, which no code of the caller's can change while they are gone through.
 * Included once, by _kernel.c. */

#ifndef OTTLA_KERNEL_ENCODE_H
#define OTTLA_KERNEL_ENCODE_H

#define MAX_RECORD_OVERHEAD (1 + MAX_VARLONG_BYTES + 5 * MAX_VARINT_BYTES)

/* A buffer that grows; nothing is written to it that was not reserved first. */
typedef struct {
    uint8_t *data;
    size_t length;
    size_t capacity;
} out_t;

static uint8_t *
out_reserve(out_t *out, size_t more)
{
    if (out->capacity - out->length < more) {
        size_t wanted = out->length + more;
        size_t doubled = out->capacity * 2;
        size_t capacity = wanted > doubled ? wanted : doubled;
        uint8_t *data = wanted < more ? NULL : PyMem_RawRealloc(out->data, capacity);
        if (data == NULL) {
            return NULL;
        }
        out->data = data;
        out->capacity = capacity;
    }
    return out->data + out->length;
}

static void
out_free(out_t *out)
{
    PyMem_RawFree(out->data);
}

static int
out_varint(out_t *out, int64_t value)
{
    uint8_t *p = out_reserve(out, MAX_VARLONG_BYTES);
    if (p == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    out->length = (size_t)(write_varint(p, value) - out->data);
    return 0;
}

static int
out_bytes(out_t *out, const void *data, Py_ssize_t length)
{
    if (length > MAX_INT32) {
        PyErr_SetString(PyExc_OverflowError, "a field cannot be larger than 2^31 - 1 bytes");
        return -1;
    }
    if (out_varint(out, length) < 0) {
        return -1;
    }
    uint8_t *p = out_reserve(out, (size_t)length);
    if (p == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (length > 0) {
        memcpy(p, data, (size_t)length);
    }
    out->length += (size_t)length;
    return 0;
}

static int
out_field(out_t *out, PyObject *object)
{
    if (object == Py_None) {
        return out_varint(out, -1);
    }
    if (PyBytes_Check(object)) {
        return out_bytes(out, PyBytes_AS_STRING(object), PyBytes_GET_SIZE(object));
    }
    Py_buffer view;
    if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) < 0) {
        return -1;
    }
    int failed = out_bytes(out, view.buf, view.len);
    PyBuffer_Release(&view);
    return failed;
}

static int
out_header_key(out_t *out, PyObject *key)
{
    if (PyUnicode_Check(key)) {
        Py_ssize_t length;
        const char *text = PyUnicode_AsUTF8AndSize(key, &length);
        return text == NULL ? -1 : out_bytes(out, text, length);
    }
    if (PyBytes_Check(key)) {
        return out_field(out, key);
    }
    PyErr_Format(PyExc_TypeError, "a header's key is str or bytes, not %.100s", Py_TYPE(key)->tp_name);
    return -1;
}

static int
out_header(out_t *out, PyObject *header)
{
    PyObject *pair = PySequence_Tuple(header);
    if (pair == NULL) {
        return -1;
    }
    int failed = -1;
    if (PyTuple_GET_SIZE(pair) != 2) {
        PyErr_SetString(PyExc_ValueError, "a header is a pair of key and value");
    }
    else {
        failed = out_header_key(out, PyTuple_GET_ITEM(pair, 0)) < 0 ||
                         out_field(out, PyTuple_GET_ITEM(pair, 1)) < 0
                     ? -1
                     : 0;
    }
    Py_DECREF(pair);
    return failed;
}

static int
out_headers(out_t *out, PyObject *headers)
{
    PyObject *fast = PySequence_Tuple(headers);
    if (fast == NULL) {
        return -1;
    }
    int failed = out_varint(out, PyTuple_GET_SIZE(fast));
    for (Py_ssize_t i = 0; failed == 0 && i < PyTuple_GET_SIZE(fast); i++) {
        failed = out_header(out, PyTuple_GET_ITEM(fast, i));
    }
    Py_DECREF(fast);
    return failed;
}

/* The body went in behind room for a guessed length; put the true one there, moving the body if it must. */
static int
out_close_record(out_t *out, size_t start, int guessed_size)
{
    size_t body = out->length - start - (size_t)guessed_size;
    if (body > MAX_INT32) {
        PyErr_SetString(PyExc_OverflowError, "a record cannot be larger than 2^31 - 1 bytes");
        return -1;
    }
    int size = varint_size((int64_t)body);
    if (size != guessed_size) {
        if (out_reserve(out, MAX_VARINT_BYTES) == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        memmove(out->data + start + size, out->data + start + guessed_size, body);
        out->length = start + (size_t)size + body;
    }
    write_varint(out->data + start, (int64_t)body);
    return 0;
}

static Py_ssize_t
size_hint(PyObject *object)
{
    return PyBytes_Check(object) ? PyBytes_GET_SIZE(object) : 0;
}

/* items: key, value, headers */
static int
out_record(out_t *out, int32_t offset_delta, int64_t timestamp_delta, PyObject *const *items)
{
    size_t start = out->length;
    int64_t likely = 1 + varint_size(timestamp_delta) + varint_size(offset_delta) + size_hint(items[0]) +
                     size_hint(items[1]) + varint_size(size_hint(items[0])) + varint_size(size_hint(items[1])) + 1;
    int guessed_size = varint_size(likely > MAX_INT32 ? MAX_INT32 : likely);
    uint8_t *p = out_reserve(out, (size_t)likely + 2 * MAX_VARLONG_BYTES);
    if (p == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    out->length += (size_t)guessed_size + 1;
    out->data[out->length - 1] = 0; /* attributes */
    if (out_varint(out, timestamp_delta) < 0 || out_varint(out, offset_delta) < 0 ||
        out_field(out, items[0]) < 0 || out_field(out, items[1]) < 0 || out_headers(out, items[2]) < 0) {
        return -1;
    }
    return out_close_record(out, start, guessed_size);
}

static PyObject *
out_finish(out_t *out)
{
    PyObject *result = PyByteArray_FromStringAndSize((const char *)out->data, (Py_ssize_t)out->length);
    out_free(out);
    return result;
}

static int
out_new_record(out_t *out, PyObject *item, int64_t base_timestamp, int32_t offset_delta, int64_t *highest)
{
    PyObject *fields = PySequence_Tuple(item);
    int64_t timestamp;
    int failed = -1;
    if (fields == NULL) {
        return -1;
    }
    if (PyTuple_GET_SIZE(fields) != 4) {
        PyErr_SetString(PyExc_ValueError, "a record is (timestamp, key, value, headers)");
    }
    else if (as_int64(PyTuple_GET_ITEM(fields, 0), &timestamp) == 0) {
        PyObject *items[3] = {PyTuple_GET_ITEM(fields, 1), PyTuple_GET_ITEM(fields, 2), PyTuple_GET_ITEM(fields, 3)};
        *highest = timestamp > *highest ? timestamp : *highest;
        failed = out_record(out, offset_delta, wrapping_subtract(timestamp, base_timestamp), items);
    }
    Py_DECREF(fields);
    return failed;
}

/* `deltas` is NULL where each record's delta is its index. */
static int
out_new_records(out_t *out, PyObject *records, PyObject *deltas, int64_t base_timestamp, int64_t *highest)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(records); i++) {
        int32_t delta = (int32_t)i;
        if (i > MAX_INT32 || (deltas != NULL && i >= PyTuple_GET_SIZE(deltas))) {
            PyErr_SetString(PyExc_ValueError, "one offset delta for each record is required");
            return -1;
        }
        if (deltas != NULL && as_int32(PyTuple_GET_ITEM(deltas, i), &delta) < 0) {
            return -1;
        }
        if (out_new_record(out, PyTuple_GET_ITEM(records, i), base_timestamp, delta, highest) < 0) {
            return -1;
        }
    }
    return 0;
}

static PyObject *
encode_all(PyObject *records, PyObject *deltas, int64_t base_timestamp, Py_ssize_t reserve)
{
    out_t out = {NULL, 0, 0};
    int64_t highest = NO_TIMESTAMP;
    if (deltas != NULL && PyTuple_GET_SIZE(deltas) != PyTuple_GET_SIZE(records)) {
        PyErr_SetString(PyExc_ValueError, "one offset delta for each record is required");
        return NULL;
    }
    uint8_t *p = out_reserve(&out, (size_t)reserve + MAX_RECORD_OVERHEAD);
    if (p == NULL) {
        return PyErr_NoMemory();
    }
    memset(p, 0, (size_t)reserve);
    out.length = (size_t)reserve;
    if (out_new_records(&out, records, deltas, base_timestamp, &highest) < 0) {
        out_free(&out);
        return NULL;
    }
    PyObject *section = out_finish(&out);
    return section == NULL ? NULL : Py_BuildValue("NL", section, (long long)highest);
}

/* How many bytes are to be left for a header. */
static int
as_reserve(PyObject *object, Py_ssize_t *reserve)
{
    *reserve = PyLong_AsSsize_t(object);
    if (*reserve < 0) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "negative count");
        }
        return -1;
    }
    return 0;
}

static PyObject *
kernel_encode_records(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    int64_t base_timestamp;
    Py_ssize_t reserve = 0;
    if (expect_arguments("encode_records", nargs, 2, 4) < 0 || as_int64(args[1], &base_timestamp) < 0) {
        return NULL;
    }
    if (nargs > 3 && as_reserve(args[3], &reserve) < 0) {
        return NULL;
    }
    PyObject *records = PySequence_Tuple(args[0]);
    if (records == NULL) {
        return NULL;
    }
    PyObject *deltas = NULL;
    if (nargs > 2 && args[2] != Py_None) {
        deltas = PySequence_Tuple(args[2]);
        if (deltas == NULL) {
            Py_DECREF(records);
            return NULL;
        }
    }
    PyObject *result = encode_all(records, deltas, base_timestamp, reserve);
    Py_DECREF(records);
    Py_XDECREF(deltas);
    return result;
}

/* ---- rebuilding what the cleaner keeps ---- */

typedef struct {
    int64_t base_timestamp;
    int64_t log_append_time;
    int64_t new_base;
    int64_t highest;
    int64_t retained;
    int has_log_append_time;
    int has_new_base;
    int out_of_memory;
} rebuild_t;

/* A record is never written longer than its body and the overhead, so one reserve serves the whole of it. */
static int
rebuild_one(out_t *out, const record_t *r, rebuild_t *b)
{
    int64_t timestamp =
        b->has_log_append_time ? b->log_append_time : wrapping_add(b->base_timestamp, r->timestamp_delta);
    if (!b->has_new_base) {
        b->new_base = timestamp;
        b->has_new_base = 1;
    }
    int64_t delta = wrapping_subtract(timestamp, b->new_base);
    size_t tail = (size_t)(r->end - r->key_field);
    int64_t body = 1 + varint_size(delta) + varint_size(r->offset_delta) + (int64_t)tail;
    uint8_t *p = out_reserve(out, tail + MAX_RECORD_OVERHEAD);
    if (p == NULL) {
        return -1;
    }
    p = write_varint(p, body);
    *p++ = 0; /* attributes */
    p = write_varint(p, delta);
    p = write_varint(p, r->offset_delta);
    memcpy(p, r->key_field, tail);
    out->length = (size_t)(p + tail - out->data);
    b->highest = timestamp > b->highest ? timestamp : b->highest;
    b->retained++;
    return 0;
}

static void
rebuild_all(out_t *out, walk_t *walk, const uint8_t *mask, rebuild_t *b)
{
    record_t r;
    while (next_record(walk, &r)) {
        if (mask[walk->index - 1] && rebuild_one(out, &r, b) < 0) {
            b->out_of_memory = 1;
            return;
        }
    }
}

static PyObject *
rebuild_result(PyObject *module, out_t *out, const walk_t *walk, const rebuild_t *b)
{
    if (b->out_of_memory || walk->problem != PROBLEM_NONE) {
        out_free(out);
        return b->out_of_memory ? PyErr_NoMemory() : raise_invalid(module, walk->problem, walk->index);
    }
    PyObject *section = out_finish(out);
    if (section == NULL) {
        return NULL;
    }
    long long base = b->has_new_base ? b->new_base : NO_TIMESTAMP;
    return Py_BuildValue("NLLL", section, base, (long long)b->highest, (long long)b->retained);
}

static PyObject *
kernel_rebuild_records(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer view, mask;
    walk_t walk;
    out_t out = {NULL, 0, 0};
    rebuild_t b = {.highest = NO_TIMESTAMP};
    if (expect_arguments("rebuild_records", nargs, 6, 8) < 0 || as_int64(args[5], &b.base_timestamp) < 0 ||
        (nargs > 6 && as_optional_int64(args[6], &b.log_append_time, &b.has_log_append_time) < 0) ||
        (nargs > 7 && as_optional_int64(args[7], &b.new_base, &b.has_new_base) < 0) ||
        PyObject_GetBuffer(args[4], &mask, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    if (open_section(args, &view, &walk) < 0) {
        PyBuffer_Release(&mask);
        return NULL;
    }
    PyObject *result = NULL;
    if (mask.len != (walk.count < 0 ? 0 : walk.count)) {
        PyErr_SetString(PyExc_ValueError, "one byte of the mask for each record is required");
    }
    else {
        if (walk.end - walk.p >= LARGE_FOR_CLEANER_BYTES) {
            Py_BEGIN_ALLOW_THREADS
            rebuild_all(&out, &walk, mask.buf, &b);
            Py_END_ALLOW_THREADS
        }
        else {
            rebuild_all(&out, &walk, mask.buf, &b);
        }
        result = rebuild_result(module, &out, &walk, &b);
    }
    PyBuffer_Release(&view);
    PyBuffer_Release(&mask);
    return result;
}

/* ---- giving records the deltas 0..n-1 ---- */

/* The bytes of a record's body with another delta; what lies before and behind the delta stays as it is. */
static inline int64_t
renumbered_size(const record_t *r, int64_t index)
{
    return 1 + varint_size(r->timestamp_delta) + varint_size(index) + (int64_t)(r->end - r->key_field);
}

static int64_t
renumber_measure(walk_t *walk)
{
    int64_t size = 0;
    record_t r;
    while (next_record(walk, &r)) {
        int64_t body = renumbered_size(&r, walk->index - 1);
        size += varint_size(body) + body;
    }
    return size;
}

/* Up to `end`, which is NULL where somebody wrote meanwhile, so that the records are others than were measured. */
static const uint8_t *
renumber_write(walk_t *walk, uint8_t *p, const uint8_t *end)
{
    record_t r;
    while (next_record(walk, &r)) {
        int64_t body = renumbered_size(&r, walk->index - 1);
        if (varint_size(body) + body > end - p) {
            return NULL;
        }
        p = write_varint(p, body);
        *p++ = 0; /* attributes */
        p = write_varint(p, r.timestamp_delta);
        p = write_varint(p, walk->index - 1);
        memcpy(p, r.key_field, (size_t)(r.end - r.key_field));
        p += r.end - r.key_field;
    }
    return p == end ? p : NULL;
}

static PyObject *
renumber_section(PyObject *module, walk_t walk, Py_ssize_t reserve)
{
    walk_t again = walk;
    int large = walk.end - walk.p >= LARGE_BYTES;
    int64_t size;
    if (large) {
        Py_BEGIN_ALLOW_THREADS
        size = renumber_measure(&walk);
        Py_END_ALLOW_THREADS
    }
    else {
        size = renumber_measure(&walk);
    }
    if (walk.problem != PROBLEM_NONE) {
        return raise_invalid(module, walk.problem, walk.index);
    }
    if (size > PY_SSIZE_T_MAX - reserve) {
        return PyErr_NoMemory();
    }
    PyObject *section = PyByteArray_FromStringAndSize(NULL, reserve + (Py_ssize_t)size);
    if (section == NULL) {
        return NULL;
    }
    uint8_t *out = (uint8_t *)PyByteArray_AS_STRING(section);
    const uint8_t *end = out + reserve + size, *written;
    memset(out, 0, (size_t)reserve);
    if (large) {
        Py_BEGIN_ALLOW_THREADS
        written = renumber_write(&again, out + reserve, end);
        Py_END_ALLOW_THREADS
    }
    else {
        written = renumber_write(&again, out + reserve, end);
    }
    if (written == NULL) {
        Py_DECREF(section);
        PyErr_SetString(PyExc_RuntimeError, "the buffer changed while its records were read");
        return NULL;
    }
    return section;
}

static PyObject *
kernel_renumber_records(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer view;
    walk_t walk;
    Py_ssize_t reserve = 0;
    if (expect_arguments("renumber_records", nargs, 4, 5) < 0 || (nargs > 4 && as_reserve(args[4], &reserve) < 0) ||
        open_section(args, &view, &walk) < 0) {
        return NULL;
    }
    PyObject *result = renumber_section(module, walk, reserve);
    PyBuffer_Release(&view);
    return result;
}

#endif
