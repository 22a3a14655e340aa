/* ColumnBuilder as a Python type, and the memory that it hands out. Included once, by _kernel.c. */

#ifndef OTTLA_KERNEL_COLUMN_TYPE_H
#define OTTLA_KERNEL_COLUMN_TYPE_H

/* ---- finished memory: readable through the buffer protocol, freed with its last reader ---- */

typedef struct {
    PyObject_HEAD
    uint8_t *data;
    Py_ssize_t length;
} column_buffer_object;

static int
column_buffer_get(column_buffer_object *self, Py_buffer *view, int flags)
{
    return PyBuffer_FillInfo(view, (PyObject *)self, self->data, self->length, 1, flags);
}

static void
column_buffer_dealloc(column_buffer_object *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyMem_RawFree(self->data);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot column_buffer_slots[] = {
    {Py_bf_getbuffer, column_buffer_get},
    {Py_tp_dealloc, column_buffer_dealloc},
    {0, NULL},
};

static PyType_Spec column_buffer_spec = {
    .name = "ottla.records._kernel.ColumnBuffer",
    .basicsize = sizeof(column_buffer_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = column_buffer_slots,
};

/* What `grow` holds as a memoryview; the memory changes hands. */
static PyObject *
grow_finish(PyTypeObject *type, grow_t *grow, size_t length)
{
    if (grow_to(grow, length) < 0) {
        return PyErr_NoMemory();
    }
    column_buffer_object *buffer = (column_buffer_object *)type->tp_alloc(type, 0);
    if (buffer == NULL) {
        return NULL;
    }
    if (length < grow->out.capacity / 2) {
        uint8_t *shrunk = PyMem_RawRealloc(grow->out.data, length == 0 ? 1 : length);
        grow->out.data = shrunk == NULL ? grow->out.data : shrunk;
    }
    buffer->data = grow->out.data;
    buffer->length = (Py_ssize_t)length;
    *grow = (grow_t){{NULL, 0, 0}, length};
    PyObject *view = PyMemoryView_FromObject((PyObject *)buffer);
    Py_DECREF(buffer);
    return view;
}

static PyObject *
bits_finish(PyTypeObject *type, bin_builder_t *bin, int64_t rows)
{
    if (bin->nulls == 0) {
        Py_RETURN_NONE;
    }
    return grow_finish(type, &bin->bits, (size_t)(rows + 7) / 8);
}

/* ---- the builder ---- */

typedef struct {
    PyObject_HEAD
    builder_t builder;
    int busy; /* a thread works on it without the GIL */
} column_builder_object;

static PyObject *
column_builder_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"with_headers", "max_data_bytes", NULL};
    int with_headers = 0;
    long long max_data = MAX_INT32;
    if (find_column_types(PyType_GetModuleState(type)) < 0 ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "|pL:ColumnBuilder", names, &with_headers, &max_data)) {
        return NULL;
    }
    if (max_data < 0 || max_data > MAX_INT32) {
        PyErr_SetString(PyExc_ValueError, "max_data_bytes is from 0 to 2^31 - 1");
        return NULL;
    }
    column_builder_object *self = (column_builder_object *)type->tp_alloc(type, 0); /* zeroed */
    if (self != NULL) {
        self->builder.with_headers = with_headers;
        self->builder.max_data = max_data;
    }
    return (PyObject *)self;
}

static void
bin_free(bin_builder_t *bin)
{
    out_free(&bin->offsets.out);
    out_free(&bin->data.out);
    out_free(&bin->bits.out);
}

static void
column_builder_dealloc(column_builder_object *self)
{
    PyTypeObject *type = Py_TYPE(self);
    builder_t *b = &self->builder;
    bin_free(&b->key);
    bin_free(&b->value);
    bin_free(&b->lists);
    bin_free(&b->header_key);
    bin_free(&b->header_value);
    out_free(&b->offsets.out);
    out_free(&b->timestamps.out);
    out_free(&b->types.out);
    type->tp_free(self);
    Py_DECREF(type);
}

static int
column_builder_claim(column_builder_object *self)
{
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "the column builder is in use by another thread");
        return -1;
    }
    return 0;
}

static PyObject *
raise_not_added(PyObject *module, int status, const walk_t *walk)
{
    if (status == ADD_NO_MEMORY) {
        return PyErr_NoMemory();
    }
    if (status == ADD_OVERFLOW) {
        PyErr_SetString(PyExc_OverflowError, "the columns are full: finish them first");
        return NULL;
    }
    if (walk->problem == PROBLEM_NONE) {
        PyErr_SetString(PyExc_RuntimeError, "the buffer changed while its records were read");
        return NULL;
    }
    return raise_invalid(module, walk->problem, walk->index);
}

static PyObject *
column_builder_add_records(column_builder_object *self, PyTypeObject *defining_class, PyObject *const *args,
                           Py_ssize_t nargs, PyObject *kwnames)
{
    Py_buffer view;
    walk_t walk;
    section_t s = {0};
    int status;
    if (expect_arguments("add_records", nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0), 9, 9) < 0 ||
        expect_arguments("add_records", nargs, 9, 9) < 0 || as_int64(args[4], &s.base_offset) < 0 ||
        as_int64(args[5], &s.base_timestamp) < 0 ||
        as_optional_int64(args[6], &s.log_append_time, &s.has_log_append_time) < 0 ||
        as_int64(args[7], &s.first_offset) < 0 || as_int64(args[8], &s.end_offset) < 0 ||
        open_section(args, &view, &walk) < 0) {
        return NULL;
    }
    if (column_builder_claim(self) < 0) { /* after the arguments, which may have run code of anybody's */
        PyBuffer_Release(&view);
        return NULL;
    }
    int64_t before = self->builder.rows;
    if (walk.end - walk.p >= LARGE_BYTES) {
        self->busy = 1;
        Py_BEGIN_ALLOW_THREADS
        status = builder_add(&self->builder, &walk, &s);
        Py_END_ALLOW_THREADS
        self->busy = 0;
    }
    else {
        status = builder_add(&self->builder, &walk, &s);
    }
    PyBuffer_Release(&view);
    if (status != ADDED) {
        return raise_not_added(PyType_GetModule(defining_class), status, &walk);
    }
    return PyLong_FromLongLong(self->builder.rows - before);
}

static int
as_flag(PyObject *object, int *out)
{
    *out = PyObject_IsTrue(object);
    return *out < 0 ? -1 : 0;
}

static PyObject *
column_builder_add_batches(column_builder_object *self, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer view;
    const uint8_t *p, *end;
    batches_t limits = {.check_crcs = 1};
    int status = ADDED;
    if (expect_arguments("add_batches", nargs, 7, 9) < 0 || as_int64(args[3], &limits.first_offset) < 0 ||
        as_int64(args[4], &limits.end_offset) < 0 || as_int64(args[5], &limits.max_rows) < 0 ||
        as_int64(args[6], &limits.max_bytes) < 0 || (nargs > 7 && as_flag(args[7], &limits.check_crcs) < 0) ||
        (nargs > 8 && as_flag(args[8], &limits.transactional) < 0) || open_range(args, &view, &p, &end) < 0) {
        return NULL;
    }
    if (column_builder_claim(self) < 0) {
        PyBuffer_Release(&view);
        return NULL;
    }
    if (end - p >= LARGE_BYTES) {
        self->busy = 1;
        Py_BEGIN_ALLOW_THREADS
        p = builder_add_batches(&self->builder, p, end, &limits, &status);
        Py_END_ALLOW_THREADS
        self->busy = 0;
    }
    else {
        p = builder_add_batches(&self->builder, p, end, &limits, &status);
    }
    Py_ssize_t position = p - (const uint8_t *)view.buf;
    PyBuffer_Release(&view);
    return status == ADD_NO_MEMORY ? PyErr_NoMemory() : PyLong_FromSsize_t(position);
}

/* A tuple of the given type, from items that it takes over; any of them may be NULL with the error set. */
static PyObject *
pack_named(PyTypeObject *type, PyObject **items, Py_ssize_t count)
{
    PyObject *result = named_tuple_new(type, count);
    int failed = result == NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        failed |= items[i] == NULL;
        if (result != NULL) {
            PyTuple_SET_ITEM(result, i, items[i]);
        }
        else {
            Py_XDECREF(items[i]);
        }
    }
    if (failed) {
        Py_CLEAR(result);
    }
    return result;
}

static PyObject *
headers_finish(const kernel_state *state, builder_t *b)
{
    PyTypeObject *memory = (PyTypeObject *)state->column_buffer_type;
    int64_t rows = b->rows, total = b->headers;
    size_t key = bin_length(&b->header_key, total), value = bin_length(&b->header_value, total);
    PyObject *items[10] = {
        bits_finish(memory, &b->lists, rows),
        grow_finish(memory, &b->lists.offsets, (size_t)(rows + 1) * sizeof(int32_t)),
        grow_finish(memory, &b->header_key.offsets, (size_t)(total + 1) * sizeof(int32_t)),
        grow_finish(memory, &b->header_key.data, key),
        bits_finish(memory, &b->header_value, total),
        grow_finish(memory, &b->header_value.offsets, (size_t)(total + 1) * sizeof(int32_t)),
        grow_finish(memory, &b->header_value.data, value),
        PyLong_FromLongLong(b->lists.nulls),
        PyLong_FromLongLong(b->header_value.nulls),
        PyLong_FromLongLong(total),
    };
    return pack_named(state->header_columns_type, items, 10);
}

static PyObject *
columns_finish(const kernel_state *state, builder_t *b)
{
    PyTypeObject *memory = (PyTypeObject *)state->column_buffer_type;
    int64_t rows = b->rows;
    size_t key = bin_length(&b->key, rows), value = bin_length(&b->value, rows);
    PyObject *items[13] = {
        PyLong_FromLongLong(rows),
        bits_finish(memory, &b->key, rows),
        grow_finish(memory, &b->key.offsets, (size_t)(rows + 1) * sizeof(int32_t)),
        grow_finish(memory, &b->key.data, key),
        bits_finish(memory, &b->value, rows),
        grow_finish(memory, &b->value.offsets, (size_t)(rows + 1) * sizeof(int32_t)),
        grow_finish(memory, &b->value.data, value),
        grow_finish(memory, &b->offsets, (size_t)rows * sizeof(int64_t)),
        grow_finish(memory, &b->timestamps, (size_t)rows * sizeof(int64_t)),
        grow_finish(memory, &b->types, (size_t)rows * sizeof(int32_t)),
        PyLong_FromLongLong(b->key.nulls),
        PyLong_FromLongLong(b->value.nulls),
        b->with_headers ? headers_finish(state, b) : Py_NewRef(Py_None),
    };
    return pack_named(state->columns_type, items, 13);
}

static PyObject *
column_builder_finish(column_builder_object *self, PyTypeObject *defining_class, PyObject *const *Py_UNUSED(args),
                      Py_ssize_t nargs, PyObject *kwnames)
{
    builder_t *b = &self->builder;
    if (expect_arguments("finish", nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0), 0, 0) < 0 ||
        column_builder_claim(self) < 0) {
        return NULL;
    }
    if (builder_reserve(b, 0, 0) != ADDED) { /* the first of the offsets must be there, even of no rows */
        return PyErr_NoMemory();
    }
    PyObject *result = columns_finish(PyType_GetModuleState(defining_class), b);
    b->rows = b->headers = 0;
    b->key.nulls = b->value.nulls = b->lists.nulls = b->header_value.nulls = 0;
    return result;
}

static PyObject *
column_builder_rows(column_builder_object *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(self->builder.rows);
}

static PyObject *
column_builder_size(column_builder_object *self, void *Py_UNUSED(closure))
{
    return column_builder_claim(self) < 0 ? NULL : PyLong_FromLongLong(builder_size(&self->builder));
}

#define COLUMN_METHOD(name, flags) {#name, (PyCFunction)(void (*)(void))column_builder_##name, (flags), NULL}

static PyMethodDef column_builder_methods[] = {
    COLUMN_METHOD(add_records, METH_METHOD | METH_FASTCALL | METH_KEYWORDS),
    COLUMN_METHOD(add_batches, METH_FASTCALL),
    COLUMN_METHOD(finish, METH_METHOD | METH_FASTCALL | METH_KEYWORDS),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef column_builder_getset[] = {
    {"rows", (getter)column_builder_rows, NULL, NULL, NULL},
    {"size_bytes", (getter)column_builder_size, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot column_builder_slots[] = {
    {Py_tp_new, column_builder_new},
    {Py_tp_dealloc, column_builder_dealloc},
    {Py_tp_methods, column_builder_methods},
    {Py_tp_getset, column_builder_getset},
    {0, NULL},
};

static PyType_Spec column_builder_spec = {
    .name = "ottla.records._kernel.ColumnBuilder",
    .basicsize = sizeof(column_builder_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = column_builder_slots,
};

#endif
