/* The record kernel, compiled: see ottla/records/kernel.py for what each function does, and _kernel_py.py for the
 * twin that it must agree with, answers and errors alike.
 *
 * Rules: every length is checked before it is used or allocated from; input is read through the buffer protocol
 * without a copy; long input is worked on without the GIL (shorter is not, because a thread that gives the GIL
 * away may wait milliseconds to have it back). */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include "_kernel_crc32c.h"
#include "_kernel_offset_map.h"
#include "_kernel_parse.h"

#define LARGE_BYTES (512 * 1024)
#define LARGE_FOR_CLEANER_BYTES (16 * 1024)
#define MAX_INT32 0x7FFFFFFF
#define NO_TIMESTAMP (-1)

typedef struct {
    PyTypeObject *record_type;
    PyObject *invalid_record_error;
    PyObject *offset_map_type;
    PyTypeObject *columns_type;
    PyTypeObject *header_columns_type;
    PyTypeObject *row_split_type;
    PyObject *column_buffer_type;
    PyObject *column_builder_type;
} kernel_state;

/* ---- arguments ---- */

static int
expect_arguments(const char *name, Py_ssize_t given, Py_ssize_t least, Py_ssize_t most)
{
    if (given < least || given > most) {
        PyErr_Format(PyExc_TypeError, "%s takes %zd to %zd positional arguments, %zd given", name, least, most, given);
        return -1;
    }
    return 0;
}

static int
as_int64(PyObject *object, int64_t *out)
{
    *out = PyLong_AsLongLong(object);
    return *out == -1 && PyErr_Occurred() ? -1 : 0;
}

static int
as_int32(PyObject *object, int32_t *out)
{
    int64_t wide;
    if (as_int64(object, &wide) < 0) {
        return -1;
    }
    if (wide < -MAX_INT32 - 1LL || wide > MAX_INT32) {
        PyErr_Format(PyExc_OverflowError, "%lld does not fit its field", (long long)wide);
        return -1;
    }
    *out = (int32_t)wide;
    return 0;
}

/* None leaves *out alone and clears *given. */
static int
as_optional_int64(PyObject *object, int64_t *out, int *given)
{
    *given = object != Py_None;
    return *given ? as_int64(object, out) : 0;
}

/* (buf, start, end) at args[0..2]; on success the caller releases the view. */
static int
open_range(PyObject *const *args, Py_buffer *view, const uint8_t **start, const uint8_t **end)
{
    Py_ssize_t from = PyLong_AsSsize_t(args[1]);
    if (from == -1 && PyErr_Occurred()) {
        return -1;
    }
    Py_ssize_t to = PyLong_AsSsize_t(args[2]);
    if (to == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (PyObject_GetBuffer(args[0], view, PyBUF_SIMPLE) < 0) {
        return -1;
    }
    if (from < 0 || from > to || to > view->len) {
        PyErr_Format(PyExc_ValueError, "range [%zd, %zd) does not lie in a buffer of %zd bytes", from, to, view->len);
        PyBuffer_Release(view);
        return -1;
    }
    *start = (const uint8_t *)view->buf + from;
    *end = (const uint8_t *)view->buf + to;
    return 0;
}

/* (buf, start, end, count) at args[0..3]. */
static int
open_section(PyObject *const *args, Py_buffer *view, walk_t *walk)
{
    int64_t count;
    const uint8_t *start, *end;
    if (as_int64(args[3], &count) < 0 || open_range(args, view, &start, &end) < 0) {
        return -1;
    }
    *walk = walk_begin(start, end, count);
    return 0;
}

/* A tuple of integers. It holds nothing that could be part of a cycle, so the collector need not look at it. */
static PyObject *
pack_integers(const int64_t *values, Py_ssize_t count)
{
    PyObject *result = PyTuple_New(count);
    if (result == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *number = PyLong_FromLongLong(values[i]);
        if (number == NULL) {
            Py_DECREF(result);
            return NULL;
        }
        PyTuple_SET_ITEM(result, i, number);
    }
    PyObject_GC_UnTrack(result);
    return result;
}

static PyObject *
raise_invalid(PyObject *module, int problem, int64_t index)
{
    kernel_state *state = PyModule_GetState(module);
    PyObject *error = PyObject_CallFunction(state->invalid_record_error, "iL", problem, (long long)index);
    if (error != NULL) {
        PyErr_SetObject(state->invalid_record_error, error);
        Py_DECREF(error);
    }
    return NULL;
}

/* A type of a module of ours that is a tuple with names. */
static PyTypeObject *
tuple_type(PyObject *module, const char *name)
{
    PyObject *type = module == NULL ? NULL : PyObject_GetAttrString(module, name);
    if (type != NULL && (!PyType_Check(type) || !PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type))) {
        PyErr_Format(PyExc_TypeError, "%s must be a tuple", name);
        Py_CLEAR(type);
    }
    return (PyTypeObject *)type;
}

/* A tuple of such a type, without items yet: what tuple's own constructor does for a subclass, without the tuple in
 * between. From 3.14 on a tuple keeps its hash, and memory that is only zeroed would say that it is known to be 0. */
static inline PyObject *
named_tuple_new(PyTypeObject *type, Py_ssize_t count)
{
    PyObject *result = type->tp_alloc(type, count);
#if PY_VERSION_HEX >= 0x030E0000
    if (result != NULL) {
        ((PyTupleObject *)result)->ob_hash = -1;
    }
#endif
    return result;
}

/* The types of ottla.records.column_types, imported when columns are first asked for: a broker never does. */
static int
find_column_types(kernel_state *state)
{
    if (state->row_split_type != NULL) {
        return 0;
    }
    PyObject *types = PyImport_ImportModule("ottla.records.column_types");
    if (types != NULL) {
        Py_XSETREF(state->columns_type, tuple_type(types, "Columns"));
        Py_XSETREF(state->header_columns_type, state->columns_type ? tuple_type(types, "HeaderColumns") : NULL);
        Py_XSETREF(state->row_split_type, state->header_columns_type ? tuple_type(types, "RowSplit") : NULL);
        Py_DECREF(types);
    }
    return state->row_split_type == NULL ? -1 : 0;
}

#include "_kernel_check.h"
#include "_kernel_walk.h"
#include "_kernel_decode.h"
#include "_kernel_encode.h"
#include "_kernel_map_type.h"
#include "_kernel_arrow.h"
#include "_kernel_columns.h"
#include "_kernel_column_type.h"
#include "_kernel_column_encode.h"

/* ---- the module ---- */

#define FAST(name) {#name, (PyCFunction)(void (*)(void))kernel_##name, METH_FASTCALL, NULL}

static PyMethodDef kernel_methods[] = {
    FAST(check_batch),
    FAST(crc32c),
    FAST(decode_records),
    FAST(encode_columns),
    FAST(encode_records),
    FAST(find_timestamp),
    FAST(judge_records),
    FAST(murmur2_partitions),
    FAST(rebuild_records),
    FAST(renumber_records),
    FAST(split_rows),
    FAST(summarize_records),
    FAST(whole_batches),
    {NULL, NULL, 0, NULL},
};

static int
find_types(kernel_state *state)
{
    PyObject *types = PyImport_ImportModule("ottla.records.types");
    state->record_type = tuple_type(types, "Record");
    state->invalid_record_error = types == NULL ? NULL : PyObject_GetAttrString(types, "InvalidRecordError");
    Py_XDECREF(types);
    return state->record_type == NULL || state->invalid_record_error == NULL ? -1 : 0;
}

static int
add_type(PyObject *module, PyType_Spec *spec, PyObject **type)
{
    *type = PyType_FromModuleAndSpec(module, spec, NULL);
    return *type == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)*type);
}

static int
kernel_exec(PyObject *module)
{
    kernel_state *state = PyModule_GetState(module);
    if (find_types(state) < 0 || add_type(module, &offset_map_spec, &state->offset_map_type) < 0 ||
        add_type(module, &column_buffer_spec, &state->column_buffer_type) < 0 ||
        add_type(module, &column_builder_spec, &state->column_builder_type) < 0) {
        return -1;
    }
    crc_initialize();
    return 0;
}

static int
kernel_traverse(PyObject *module, visitproc visit, void *arg)
{
    kernel_state *state = PyModule_GetState(module);
    Py_VISIT(state->record_type);
    Py_VISIT(state->invalid_record_error);
    Py_VISIT(state->offset_map_type);
    Py_VISIT(state->columns_type);
    Py_VISIT(state->header_columns_type);
    Py_VISIT(state->row_split_type);
    Py_VISIT(state->column_buffer_type);
    Py_VISIT(state->column_builder_type);
    return 0;
}

static int
kernel_clear(PyObject *module)
{
    kernel_state *state = PyModule_GetState(module);
    Py_CLEAR(state->record_type);
    Py_CLEAR(state->invalid_record_error);
    Py_CLEAR(state->offset_map_type);
    Py_CLEAR(state->columns_type);
    Py_CLEAR(state->header_columns_type);
    Py_CLEAR(state->row_split_type);
    Py_CLEAR(state->column_buffer_type);
    Py_CLEAR(state->column_builder_type);
    return 0;
}

static void
kernel_free(void *module)
{
    kernel_clear((PyObject *)module);
}

static PyModuleDef_Slot kernel_slots[] = {
    {Py_mod_exec, kernel_exec},
    {0, NULL},
};

static struct PyModuleDef kernel_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_kernel",
    .m_doc = "The record kernel, compiled; see ottla.records.kernel.",
    .m_size = sizeof(kernel_state),
    .m_methods = kernel_methods,
    .m_slots = kernel_slots,
    .m_traverse = kernel_traverse,
    .m_clear = kernel_clear,
    .m_free = kernel_free,
};

PyMODINIT_FUNC
PyInit__kernel(void)
{
    return PyModuleDef_Init(&kernel_module);
}
