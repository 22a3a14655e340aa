/* OffsetMap as a Python type. Included once, by _kernel.c. */

#ifndef OTTLA_KERNEL_MAP_TYPE_H
#define OTTLA_KERNEL_MAP_TYPE_H

typedef struct {
    PyObject_HEAD
    offset_map_t map;
    Py_ssize_t slots;
    int busy; /* a thread works on it without the GIL */
} offset_map_object;

static PyObject *
offset_map_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"memory_bytes", "secret", NULL};
    Py_ssize_t memory;
    const char *secret;
    Py_ssize_t secret_length;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "ny#:OffsetMap", names, &memory, &secret, &secret_length)) {
        return NULL;
    }
    if (secret_length != 16) {
        PyErr_SetString(PyExc_ValueError, "the secret must have 16 bytes");
        return NULL;
    }
    if (memory < (Py_ssize_t)sizeof(slot_t)) {
        PyErr_SetString(PyExc_ValueError, "an offset map needs at least 24 bytes");
        return NULL;
    }
    offset_map_object *self = (offset_map_object *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->slots = memory / (Py_ssize_t)sizeof(slot_t);
    self->map.slots = (size_t)self->slots;
    self->map.table = PyMem_RawCalloc(self->map.slots, sizeof(slot_t));
    self->map.secret[0] = load_little((const uint8_t *)secret, 8);
    self->map.secret[1] = load_little((const uint8_t *)secret + 8, 8);
    if (self->map.table == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void
offset_map_dealloc(offset_map_object *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyMem_RawFree(self->map.table);
    type->tp_free(self);
    Py_DECREF(type);
}

static int
offset_map_claim(offset_map_object *self)
{
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "the offset map is in use by another thread");
        return -1;
    }
    return 0;
}

static Py_ssize_t
offset_map_length(offset_map_object *self)
{
    return (Py_ssize_t)self->map.used;
}

static PyObject *
offset_map_put(offset_map_object *self, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer key;
    int64_t offset;
    if (expect_arguments("put", nargs, 2, 2) < 0 || as_int64(args[1], &offset) < 0) {
        return NULL;
    }
    if (offset < 0) {
        PyErr_SetString(PyExc_ValueError, "an offset is not negative");
        return NULL;
    }
    if (PyObject_GetBuffer(args[0], &key, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    if (offset_map_claim(self) < 0) { /* after the arguments, which may have run code of anybody's */
        PyBuffer_Release(&key);
        return NULL;
    }
    int taken = map_put(&self->map, key.buf, (size_t)key.len, offset);
    PyBuffer_Release(&key);
    return PyBool_FromLong(taken);
}

static PyObject *
offset_map_get(offset_map_object *self, PyObject *object)
{
    Py_buffer key;
    if (PyObject_GetBuffer(object, &key, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    if (offset_map_claim(self) < 0) {
        PyBuffer_Release(&key);
        return NULL;
    }
    int64_t offset = map_get(&self->map, key.buf, (size_t)key.len);
    PyBuffer_Release(&key);
    return PyLong_FromLongLong(offset);
}

static PyObject *
offset_map_clear(offset_map_object *self, PyObject *Py_UNUSED(ignored))
{
    if (offset_map_claim(self) < 0) {
        return NULL;
    }
    memset(self->map.table, 0, self->map.slots * sizeof(slot_t));
    self->map.used = 0;
    Py_RETURN_NONE;
}

static PyObject *
offset_map_put_records(offset_map_object *self, PyTypeObject *defining_class, PyObject *const *args, Py_ssize_t nargs,
                       PyObject *kwnames)
{
    Py_buffer view;
    walk_t walk;
    int64_t base_offset, start_offset, max_entries, taken;
    if (expect_arguments("put_records", nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0), 7, 7) < 0 ||
        expect_arguments("put_records", nargs, 7, 7) < 0 || as_int64(args[4], &base_offset) < 0 ||
        as_int64(args[5], &start_offset) < 0 || as_int64(args[6], &max_entries) < 0 ||
        open_section(args, &view, &walk) < 0) {
        return NULL;
    }
    if (offset_map_claim(self) < 0) {
        PyBuffer_Release(&view);
        return NULL;
    }
    start_offset = start_offset < 0 ? 0 : start_offset;
    size_t limit = max_entries < 0 ? 0 : (size_t)max_entries;
    limit = limit > self->map.slots ? self->map.slots : limit;
    if (walk.end - walk.p >= LARGE_FOR_CLEANER_BYTES) {
        self->busy = 1;
        Py_BEGIN_ALLOW_THREADS
        taken = map_put_records(&self->map, &walk, base_offset, start_offset, limit);
        Py_END_ALLOW_THREADS
        self->busy = 0;
    }
    else {
        taken = map_put_records(&self->map, &walk, base_offset, start_offset, limit);
    }
    PyBuffer_Release(&view);
    if (walk.problem != PROBLEM_NONE) {
        return raise_invalid(PyType_GetModule(defining_class), walk.problem, walk.index);
    }
    return PyLong_FromLongLong(taken);
}

/* The mask is allocated only if the section can hold that many records; a walk names the problem otherwise. */
static PyObject *
select_records(offset_map_object *self, PyObject *module, walk_t *walk, selection_t *s)
{
    PyObject *mask = NULL;
    if (walk->count <= (walk->end - walk->p) / MIN_RECORD_BYTES) {
        mask = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(walk->count < 0 ? 0 : walk->count));
        if (mask == NULL) {
            return NULL;
        }
        uint8_t *bytes = (uint8_t *)PyByteArray_AS_STRING(mask);
        if (walk->end - walk->p >= LARGE_FOR_CLEANER_BYTES) {
            self->busy = 1;
            Py_BEGIN_ALLOW_THREADS
            map_select(&self->map, walk, s, bytes);
            Py_END_ALLOW_THREADS
            self->busy = 0;
        }
        else {
            map_select(&self->map, walk, s, bytes);
        }
    }
    else {
        record_t r;
        while (next_record(walk, &r)) {
        }
    }
    if (walk->problem != PROBLEM_NONE) {
        Py_XDECREF(mask);
        return raise_invalid(module, walk->problem, walk->index);
    }
    return mask;
}

static PyObject *
offset_map_retain_mask(offset_map_object *self, PyTypeObject *defining_class, PyObject *const *args, Py_ssize_t nargs,
                       PyObject *kwnames)
{
    Py_buffer view;
    walk_t walk;
    selection_t s = {0};
    if (expect_arguments("retain_mask", nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0), 7, 7) < 0 ||
        expect_arguments("retain_mask", nargs, 7, 7) < 0 || as_int64(args[4], &s.base_offset) < 0 ||
        as_int64(args[5], &s.latest_offset) < 0) {
        return NULL;
    }
    s.retain_deletes = PyObject_IsTrue(args[6]);
    if (s.retain_deletes < 0 || open_section(args, &view, &walk) < 0) {
        return NULL;
    }
    if (offset_map_claim(self) < 0) {
        PyBuffer_Release(&view);
        return NULL;
    }
    PyObject *mask = select_records(self, PyType_GetModule(defining_class), &walk, &s);
    PyBuffer_Release(&view);
    if (mask == NULL) {
        return NULL;
    }
    return Py_BuildValue("NLO", mask, (long long)s.retained, s.tombstones ? Py_True : Py_False);
}

#define MAP_METHOD(name, flags) {#name, (PyCFunction)(void (*)(void))offset_map_##name, (flags), NULL}

static PyMethodDef offset_map_methods[] = {
    MAP_METHOD(put, METH_FASTCALL),
    MAP_METHOD(get, METH_O),
    MAP_METHOD(clear, METH_NOARGS),
    MAP_METHOD(put_records, METH_METHOD | METH_FASTCALL | METH_KEYWORDS),
    MAP_METHOD(retain_mask, METH_METHOD | METH_FASTCALL | METH_KEYWORDS),
    {NULL, NULL, 0, NULL},
};

static PyMemberDef offset_map_members[] = {
    {"slots", T_PYSSIZET, offsetof(offset_map_object, slots), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot offset_map_slots[] = {
    {Py_tp_new, offset_map_new},
    {Py_tp_dealloc, offset_map_dealloc},
    {Py_tp_methods, offset_map_methods},
    {Py_tp_members, offset_map_members},
    {Py_sq_length, offset_map_length},
    {0, NULL},
};

static PyType_Spec offset_map_spec = {
    .name = "ottla.records._kernel.OffsetMap",
    .basicsize = sizeof(offset_map_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = offset_map_slots,
};

#endif
