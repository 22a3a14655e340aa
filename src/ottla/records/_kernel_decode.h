/* Records to Python objects: decode_records. Included once, by _kernel.c. */

#ifndef OTTLA_KERNEL_DECODE_H
#define OTTLA_KERNEL_DECODE_H

/* A list of the declared length, or NULL with the error set if the section cannot hold so many records. */
static PyObject *
list_for_records(PyObject *module, walk_t *walk)
{
    if (walk->count >= 0 && walk->count <= (walk->end - walk->p) / MIN_RECORD_BYTES) {
        return PyList_New((Py_ssize_t)walk->count);
    }
    walk_t ahead = *walk;
    record_t r;
    while (next_record(&ahead, &r)) {
    }
    return raise_invalid(module, ahead.problem, ahead.index);
}

typedef struct {
    PyTypeObject *type;
    int64_t base_offset;
    int64_t base_timestamp;
    int64_t log_append_time;
    int has_log_append_time;
    int32_t base_sequence;
} decode_t;

static PyObject *
bytes_or_none(const uint8_t *data, int32_t length)
{
    if (length < 0) {
        Py_RETURN_NONE;
    }
    return PyBytes_FromStringAndSize((const char *)data, length);
}

static PyObject *
make_header(const uint8_t **p, const uint8_t *end)
{
    const uint8_t *key = NULL, *value = NULL;
    int32_t key_len = 0, value_len = 0;
    int problem;
    const uint8_t *next = read_field(*p, end, &key, &key_len, &problem);
    next = next == NULL ? NULL : read_field(next, end, &value, &value_len, &problem);
    if (next == NULL || key_len < 0) { /* the walk has been through here, so somebody wrote meanwhile */
        PyErr_SetString(PyExc_RuntimeError, "the buffer changed while its records were read");
        return NULL;
    }
    *p = next;
    PyObject *name = PyUnicode_DecodeUTF8((const char *)key, key_len, "replace");
    PyObject *content = bytes_or_none(value, value_len);
    PyObject *pair = name != NULL && content != NULL ? PyTuple_Pack(2, name, content) : NULL;
    Py_XDECREF(name);
    Py_XDECREF(content);
    if (pair != NULL) {
        PyObject_GC_UnTrack(pair);
    }
    return pair;
}

static PyObject *
make_headers(const record_t *r)
{
    PyObject *headers = PyTuple_New(r->headers_count);
    const uint8_t *p = r->headers;
    for (int32_t i = 0; headers != NULL && i < r->headers_count; i++) {
        PyObject *pair = make_header(&p, r->end);
        if (pair == NULL) {
            Py_CLEAR(headers);
            break;
        }
        PyTuple_SET_ITEM(headers, i, pair);
    }
    if (headers != NULL && r->headers_count > 0) {
        PyObject_GC_UnTrack(headers);
    }
    return headers;
}

static int32_t
sequence_of(int32_t base_sequence, int32_t offset_delta)
{
    if (base_sequence < 0) {
        return -1;
    }
    int64_t total = (int64_t)base_sequence + offset_delta;
    return (int32_t)(total > MAX_INT32 ? total - MAX_INT32 - 1 : total);
}

static PyObject *
make_record(const record_t *r, const decode_t *d)
{
    PyObject *record = named_tuple_new(d->type, 6);
    if (record == NULL) {
        return NULL;
    }
    int64_t timestamp =
        d->has_log_append_time ? d->log_append_time : wrapping_add(d->base_timestamp, r->timestamp_delta);
    PyTuple_SET_ITEM(record, 0, PyLong_FromLongLong(wrapping_add(d->base_offset, r->offset_delta)));
    PyTuple_SET_ITEM(record, 1, PyLong_FromLongLong(timestamp));
    PyTuple_SET_ITEM(record, 2, bytes_or_none(r->key, r->key_len));
    PyTuple_SET_ITEM(record, 3, bytes_or_none(r->value, r->value_len));
    PyTuple_SET_ITEM(record, 4, make_headers(r));
    PyTuple_SET_ITEM(record, 5, PyLong_FromLong(sequence_of(d->base_sequence, r->offset_delta)));
    for (int i = 0; i < 6; i++) {
        if (PyTuple_GET_ITEM(record, i) == NULL) {
            Py_DECREF(record);
            return NULL;
        }
    }
    PyObject_GC_UnTrack(record); /* numbers, bytes and text: never part of a cycle, and there are many */
    return record;
}

static PyObject *
kernel_decode_records(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    kernel_state *state = PyModule_GetState(module);
    decode_t d = {.type = state->record_type, .base_sequence = -1};
    if (expect_arguments("decode_records", nargs, 6, 8) < 0 || as_int64(args[4], &d.base_offset) < 0 ||
        as_int64(args[5], &d.base_timestamp) < 0 || (nargs > 6 && as_int32(args[6], &d.base_sequence) < 0) ||
        (nargs > 7 && as_optional_int64(args[7], &d.log_append_time, &d.has_log_append_time) < 0)) {
        return NULL;
    }
    Py_buffer view;
    walk_t walk;
    if (open_section(args, &view, &walk) < 0) {
        return NULL;
    }
    PyObject *list = list_for_records(module, &walk);
    record_t r;
    while (list != NULL && next_record(&walk, &r)) {
        PyObject *item = make_record(&r, &d);
        if (item == NULL) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, (Py_ssize_t)(walk.index - 1), item);
    }
    if (list != NULL && walk.problem != PROBLEM_NONE) {
        Py_CLEAR(list);
        raise_invalid(module, walk.problem, walk.index);
    }
    PyBuffer_Release(&view);
    return list;
}

#endif
