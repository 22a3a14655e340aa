/* Columns as Arrow's buffers, opened for reading: whatever they say of lengths is checked before it is believed.
 * The reading itself touches no Python object, so that it may run without the GIL; what it finds wrong it leaves in a
 * fault_t, to be raised later. Included once, by _kernel.c. */

#ifndef OTTLA_KERNEL_ARROW_H
#define OTTLA_KERNEL_ARROW_H

enum fault { NO_FAULT = 0, FAULT_OFFSETS, FAULT_ROW, FAULT_HEADER_KEY, FAULT_PARTITION, FAULT_TOO_LARGE, FAULT_CHANGED };

typedef struct {
    int kind;
    int64_t row;
    int64_t start;
    int64_t end;
    int64_t limit;
} fault_t;

static PyObject *
raise_fault(const fault_t *f)
{
    switch (f->kind) {
    case FAULT_OFFSETS:
        PyErr_Format(PyExc_ValueError, "row %lld of a column lies at [%lld, %lld) of %lld", (long long)f->row,
                     (long long)f->start, (long long)f->end, (long long)f->limit);
        break;
    case FAULT_ROW:
        PyErr_Format(PyExc_ValueError, "there is no row %lld among %lld", (long long)f->row, (long long)f->limit);
        break;
    case FAULT_HEADER_KEY:
        PyErr_Format(PyExc_ValueError, "row %lld has a header without a key", (long long)f->row);
        break;
    case FAULT_PARTITION:
        PyErr_Format(PyExc_ValueError, "row %lld has partition %lld of %lld", (long long)f->row, (long long)f->start,
                     (long long)f->limit);
        break;
    case FAULT_TOO_LARGE:
        PyErr_SetString(PyExc_OverflowError, "a record cannot be larger than 2^31 - 1 bytes");
        break;
    default:
        PyErr_SetString(PyExc_RuntimeError, "the columns changed while they were encoded");
    }
    return NULL;
}

/* ---- one array of int32 offsets into something, with its validity ---- */

typedef struct {
    Py_buffer bits_view;
    Py_buffer offsets_view;
    Py_buffer data_view;
    const uint8_t *bits;    /* NULL: all valid */
    const uint8_t *offsets; /* from the column's first row on */
    const uint8_t *data;
    int64_t bit_offset;
    int64_t rows;
    int64_t limit; /* what the offsets may reach */
} column_t;

static inline int32_t
load_int32(const uint8_t *p)
{
    int32_t value;
    memcpy(&value, p, sizeof value);
    return value;
}

static inline int
bit_at(const uint8_t *bits, int64_t index)
{
    return bits == NULL || (bits[index >> 3] >> (index & 7) & 1);
}

/* 1 with where the row lies, 0 if it is null, -1 at fault. `row` is one of the column's. */
static inline int
column_span(const column_t *c, int64_t row, int32_t *start, int32_t *end, fault_t *f)
{
    if (!bit_at(c->bits, c->bit_offset + row)) {
        return 0;
    }
    *start = load_int32(c->offsets + 4 * row);
    *end = load_int32(c->offsets + 4 * row + 4);
    if (*start < 0 || *start > *end || *end > c->limit) {
        *f = (fault_t){FAULT_OFFSETS, row, *start, *end, c->limit};
        return -1;
    }
    return 1;
}

/* The bytes of a row; a length of -1 is null. Returns -1 at fault. */
static inline int
column_bytes(const column_t *c, int64_t row, const uint8_t **data, int32_t *length, fault_t *f)
{
    int32_t start, end;
    int found = column_span(c, row, &start, &end, f);
    if (found <= 0) {
        *length = -1;
        *data = NULL;
        return found;
    }
    *data = c->data + start;
    *length = end - start;
    return 0;
}

static void
column_close(column_t *c)
{
    PyBuffer_Release(&c->bits_view);
    PyBuffer_Release(&c->offsets_view);
    PyBuffer_Release(&c->data_view);
}

/* None leaves the view empty, which may be released like any other. */
static int
open_optional(PyObject *object, Py_buffer *view)
{
    return object == Py_None ? 0 : PyObject_GetBuffer(object, view, PyBUF_SIMPLE);
}

static int
as_extent(PyObject *first, PyObject *count, int64_t *offset, int64_t *rows)
{
    if (as_int64(first, offset) < 0 || as_int64(count, rows) < 0) {
        return -1;
    }
    if (*offset < 0 || *offset > MAX_INT32 || *rows < 0 || *rows > MAX_INT32) {
        PyErr_Format(PyExc_ValueError, "a column of %lld rows from the %lldth on", (long long)*rows,
                     (long long)*offset);
        return -1;
    }
    return 0;
}

static int
open_bits(PyObject *object, Py_buffer *view, int64_t offset, int64_t rows, const uint8_t **bits)
{
    if (open_optional(object, view) < 0) {
        return -1;
    }
    if (object != Py_None && (offset + rows + 7) / 8 > view->len) {
        PyErr_Format(PyExc_ValueError, "a validity bitmap of %zd bytes for %lld + %lld rows", view->len,
                     (long long)offset, (long long)rows);
        return -1;
    }
    *bits = object == Py_None ? NULL : view->buf;
    return 0;
}

/* Validity and offsets; on failure the caller still closes the column. */
static int
open_offsets(column_t *c, PyObject *bits, PyObject *offsets, int64_t offset, int64_t rows)
{
    if (open_bits(bits, &c->bits_view, offset, rows, &c->bits) < 0 || open_optional(offsets, &c->offsets_view) < 0) {
        return -1;
    }
    if (rows > 0 && (offset + rows + 1) * 4 > c->offsets_view.len) {
        PyErr_Format(PyExc_ValueError, "%zd bytes of offsets for %lld + %lld rows", c->offsets_view.len,
                     (long long)offset, (long long)rows);
        return -1;
    }
    c->offsets = rows > 0 ? (const uint8_t *)c->offsets_view.buf + 4 * offset : NULL;
    c->bit_offset = offset;
    c->rows = rows;
    return 0;
}

static int
expect_tuple(PyObject *object, Py_ssize_t size, const char *name)
{
    if (!PyTuple_Check(object) || PyTuple_GET_SIZE(object) != size) {
        PyErr_Format(PyExc_TypeError, "a %s is a tuple of %zd", name, size);
        return -1;
    }
    return 0;
}

/* A BinColumn: (validity, offsets, data, offset, rows). On failure the caller still closes it. */
static int
open_column(PyObject *object, column_t *c)
{
    int64_t offset, rows;
    if (expect_tuple(object, 5, "BinColumn") < 0 ||
        as_extent(PyTuple_GET_ITEM(object, 3), PyTuple_GET_ITEM(object, 4), &offset, &rows) < 0 ||
        open_optional(PyTuple_GET_ITEM(object, 2), &c->data_view) < 0) {
        return -1;
    }
    c->data = c->data_view.len > 0 ? c->data_view.buf : (const uint8_t *)"";
    c->limit = c->data_view.len;
    return open_offsets(c, PyTuple_GET_ITEM(object, 0), PyTuple_GET_ITEM(object, 1), offset, rows);
}

/* ---- the columns of records ---- */

typedef struct {
    column_t lists; /* its offsets count headers */
    Py_buffer item_bits_view;
    const uint8_t *item_bits;
    int64_t item_offset;
    column_t key;
    column_t value;
} header_column_t;

typedef struct {
    int has_key;
    int has_headers;
    column_t key;
    column_t value;
    header_column_t headers;
} row_columns_t;

static void
row_columns_close(row_columns_t *c)
{
    column_close(&c->key);
    column_close(&c->value);
    column_close(&c->headers.lists);
    PyBuffer_Release(&c->headers.item_bits_view);
    column_close(&c->headers.key);
    column_close(&c->headers.value);
}

/* A HeaderColumn: (validity, offsets, offset, rows, item_validity, item_offset, items, key, value). */
static int
open_headers(PyObject *object, header_column_t *h)
{
    int64_t offset, rows, items;
    if (expect_tuple(object, 9, "HeaderColumn") < 0 ||
        as_extent(PyTuple_GET_ITEM(object, 2), PyTuple_GET_ITEM(object, 3), &offset, &rows) < 0 ||
        as_extent(PyTuple_GET_ITEM(object, 5), PyTuple_GET_ITEM(object, 6), &h->item_offset, &items) < 0 ||
        open_offsets(&h->lists, PyTuple_GET_ITEM(object, 0), PyTuple_GET_ITEM(object, 1), offset, rows) < 0 ||
        open_bits(PyTuple_GET_ITEM(object, 4), &h->item_bits_view, h->item_offset, items, &h->item_bits) < 0 ||
        open_column(PyTuple_GET_ITEM(object, 7), &h->key) < 0 ||
        open_column(PyTuple_GET_ITEM(object, 8), &h->value) < 0) {
        return -1;
    }
    h->lists.limit = items;
    if (h->key.rows < items || h->value.rows < items) {
        PyErr_SetString(PyExc_ValueError, "the header columns have fewer rows than there are headers");
        return -1;
    }
    return 0;
}

/* RowColumns: (key or None, value, headers or None). On failure the caller still closes them. */
static int
open_row_columns(PyObject *object, row_columns_t *c)
{
    if (expect_tuple(object, 3, "RowColumns") < 0 || open_column(PyTuple_GET_ITEM(object, 1), &c->value) < 0) {
        return -1;
    }
    c->has_key = PyTuple_GET_ITEM(object, 0) != Py_None;
    c->has_headers = PyTuple_GET_ITEM(object, 2) != Py_None;
    if ((c->has_key && open_column(PyTuple_GET_ITEM(object, 0), &c->key) < 0) ||
        (c->has_headers && open_headers(PyTuple_GET_ITEM(object, 2), &c->headers) < 0)) {
        return -1;
    }
    if ((c->has_key && c->key.rows != c->value.rows) || (c->has_headers && c->headers.lists.rows != c->value.rows)) {
        PyErr_SetString(PyExc_ValueError, "the columns have different numbers of rows");
        return -1;
    }
    return 0;
}

/* ---- row numbers ---- */

typedef struct {
    Py_buffer view;
    const uint8_t *rows; /* NULL: each place is a row number itself */
    int64_t count;
} order_t;

static int
open_ints(PyObject *object, Py_buffer *view, int flags, int64_t *count)
{
    if (PyObject_GetBuffer(object, view, flags) < 0) {
        return -1;
    }
    if (view->len % 4 != 0) {
        PyErr_SetString(PyExc_ValueError, "a buffer of int32 has a multiple of 4 bytes");
        return -1;
    }
    *count = view->len / 4;
    return 0;
}

static int
open_order(PyObject *object, order_t *order, int64_t total)
{
    order->count = total;
    if (object == Py_None) {
        return 0;
    }
    int failed = open_ints(object, &order->view, PyBUF_SIMPLE, &order->count);
    order->rows = order->view.len > 0 ? order->view.buf : (const uint8_t *)"";
    return failed;
}

/* The row at a place, -1 at fault. */
static inline int64_t
order_row(const order_t *order, int64_t place, int64_t total, fault_t *f)
{
    int64_t row = order->rows == NULL ? place : load_int32(order->rows + 4 * place);
    if (row < 0 || row >= total) {
        *f = (fault_t){FAULT_ROW, row, 0, 0, total};
        return -1;
    }
    return row;
}

#endif
