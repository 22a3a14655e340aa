/* How far a fetched run of batches can be used: whole_batches. Headers only: nothing here looks at a record.
 * Included once, by _kernel.c. */

#ifndef OTTLA_KERNEL_WALK_H
#define OTTLA_KERNEL_WALK_H

typedef struct {
    const uint8_t *p;
    int64_t next_offset;
} whole_t;

static whole_t
walk_whole(const uint8_t *p, const uint8_t *end, int64_t end_offset)
{
    whole_t found = {p, -1};
    while (end - found.p >= HEADER_BYTES) {
        int64_t base_offset = (int64_t)load64(found.p);
        int32_t length = (int32_t)load32(found.p + 8);
        if (length < HEADER_BYTES - LOG_OVERHEAD || end - found.p < LOG_OVERHEAD + (int64_t)length) {
            break;
        }
        if (base_offset >= end_offset) {
            found.next_offset = end_offset;
            break;
        }
        int64_t last_offset_delta = (int32_t)load32(found.p + 23);
        found.next_offset = wrapping_add(base_offset, last_offset_delta + 1);
        found.p += LOG_OVERHEAD + (int64_t)length;
    }
    return found;
}

static PyObject *
kernel_whole_batches(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer view;
    const uint8_t *p, *end;
    int64_t end_offset;
    if (expect_arguments("whole_batches", nargs, 4, 4) < 0 || as_int64(args[3], &end_offset) < 0 ||
        open_range(args, &view, &p, &end) < 0) {
        return NULL;
    }
    whole_t found;
    if (end - p >= LARGE_BYTES) {
        Py_BEGIN_ALLOW_THREADS
        found = walk_whole(p, end, end_offset);
        Py_END_ALLOW_THREADS
    }
    else {
        found = walk_whole(p, end, end_offset);
    }
    const int64_t fields[2] = {found.p - (const uint8_t *)view.buf, found.next_offset};
    PyBuffer_Release(&view);
    return pack_integers(fields, 2);
}

#endif
