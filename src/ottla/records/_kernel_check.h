/* What a broker asks of batches: check_batch, summarize_records, judge_records, find_timestamp, crc32c.
 * Included once, by _kernel.c. */

#ifndef OTTLA_KERNEL_CHECK_H
#define OTTLA_KERNEL_CHECK_H

#define HEADER_BYTES 61
#define LOG_OVERHEAD 12
#define BYTES_UP_TO_MAGIC 17
#define MIN_LEGACY_LENGTH 14
#define CRC_START 21

typedef struct {
    int problem;
    int64_t index;
    int64_t lowest;
    int64_t highest;
} summary_t;

static inline int
record_problem(const record_t *r, int64_t index, int require_key)
{
    if (require_key && r->key_len < 0) {
        return NO_KEY;
    }
    return r->offset_delta != index ? OFFSET_DELTA : PROBLEM_NONE;
}

/* With `numbered` the walk ends at the first record whose delta is not its index, whatever else is wrong. */
static summary_t
summarize(walk_t *walk, int64_t base_timestamp, int require_key, int numbered)
{
    summary_t s = {PROBLEM_NONE, -1, NO_TIMESTAMP, NO_TIMESTAMP};
    record_t r;
    while (next_record(walk, &r)) {
        int64_t timestamp = wrapping_add(base_timestamp, r.timestamp_delta);
        if (timestamp != NO_TIMESTAMP) {
            s.lowest = s.lowest == NO_TIMESTAMP || timestamp < s.lowest ? timestamp : s.lowest;
            s.highest = timestamp > s.highest ? timestamp : s.highest;
        }
        int problem = record_problem(&r, walk->index - 1, require_key);
        if (problem == PROBLEM_NONE) {
            continue;
        }
        if (numbered && r.offset_delta != walk->index - 1) {
            s.problem = OFFSET_DELTA;
            s.index = walk->index - 1;
            return s;
        }
        /* A missing key outranks a wrong delta: it is the one Kafka names. */
        if (s.problem == PROBLEM_NONE || (problem == NO_KEY && s.problem != NO_KEY)) {
            s.problem = problem;
            s.index = walk->index - 1;
        }
    }
    if (walk->problem != PROBLEM_NONE) {
        s.problem = walk->problem;
        s.index = walk->index;
    }
    return s;
}

static PyObject *
kernel_summarize_records(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer view;
    walk_t walk;
    int64_t base_timestamp;
    if (expect_arguments("summarize_records", nargs, 6, 7) < 0 || as_int64(args[4], &base_timestamp) < 0) {
        return NULL;
    }
    int require_key = PyObject_IsTrue(args[5]);
    int numbered = nargs > 6 ? PyObject_IsTrue(args[6]) : 0;
    if (require_key < 0 || numbered < 0 || open_section(args, &view, &walk) < 0) {
        return NULL;
    }
    summary_t s;
    if (walk.end - walk.p >= LARGE_BYTES) {
        Py_BEGIN_ALLOW_THREADS
        s = summarize(&walk, base_timestamp, require_key, numbered);
        Py_END_ALLOW_THREADS
    }
    else {
        s = summarize(&walk, base_timestamp, require_key, numbered);
    }
    PyBuffer_Release(&view);
    return Py_BuildValue("iLLL", s.problem, (long long)s.index, (long long)s.lowest, (long long)s.highest);
}

/* ---- which records are refused ---- */

#define MAX_NAMED 1000

typedef struct {
    int64_t index;
    int64_t timestamp;
    int problem;
} refused_t;

typedef struct {
    int require_key;
    int64_t base_timestamp;
    int64_t log_append_time;
    int has_log_append_time;
    int64_t earliest;
    int64_t latest;
    int64_t limit; /* of `named` */
    refused_t *named;
    int64_t refused;
    int64_t late; /* those of them that are refused for their timestamp */
} judge_t;

static void
judge_all(walk_t *walk, judge_t *j)
{
    record_t r;
    while (next_record(walk, &r)) {
        int64_t timestamp =
            j->has_log_append_time ? j->log_append_time : wrapping_add(j->base_timestamp, r.timestamp_delta);
        int problem = PROBLEM_NONE;
        if (j->require_key && r.key_len < 0) {
            problem = NO_KEY;
        }
        else if (timestamp != NO_TIMESTAMP && (timestamp < j->earliest || timestamp > j->latest)) {
            problem = BAD_TIMESTAMP;
            j->late++;
        }
        if (problem != PROBLEM_NONE) {
            if (j->refused < j->limit) {
                j->named[j->refused] = (refused_t){walk->index - 1, timestamp, problem};
            }
            j->refused++;
        }
    }
}

static PyObject *
judge_result(const judge_t *j)
{
    Py_ssize_t named = (Py_ssize_t)(j->refused < j->limit ? j->refused : j->limit);
    PyObject *list = PyList_New(named);
    if (list == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < named; i++) {
        const refused_t *r = &j->named[i];
        PyObject *item = Py_BuildValue("LiL", (long long)r->index, r->problem, (long long)r->timestamp);
        if (item == NULL) {
            Py_DECREF(list);
            return NULL;
        }
        PyList_SET_ITEM(list, i, item);
    }
    return Py_BuildValue("LLN", (long long)j->refused, (long long)j->late, list);
}

static PyObject *
kernel_judge_records(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer view;
    walk_t walk;
    judge_t j = {0};
    if (expect_arguments("judge_records", nargs, 10, 10) < 0 || (j.require_key = PyObject_IsTrue(args[4])) < 0 ||
        as_int64(args[5], &j.base_timestamp) < 0 ||
        as_optional_int64(args[6], &j.log_append_time, &j.has_log_append_time) < 0 ||
        as_int64(args[7], &j.earliest) < 0 || as_int64(args[8], &j.latest) < 0 || as_int64(args[9], &j.limit) < 0) {
        return NULL;
    }
    if (j.limit < 0 || j.limit > MAX_NAMED) {
        PyErr_Format(PyExc_ValueError, "0 to %d records can be named, not %lld", MAX_NAMED, (long long)j.limit);
        return NULL;
    }
    if (open_section(args, &view, &walk) < 0) {
        return NULL;
    }
    j.named = PyMem_RawCalloc((size_t)j.limit + 1, sizeof(refused_t));
    if (j.named == NULL) {
        PyBuffer_Release(&view);
        return PyErr_NoMemory();
    }
    if (walk.end - walk.p >= LARGE_BYTES) {
        Py_BEGIN_ALLOW_THREADS
        judge_all(&walk, &j);
        Py_END_ALLOW_THREADS
    }
    else {
        judge_all(&walk, &j);
    }
    PyBuffer_Release(&view);
    PyObject *result =
        walk.problem == PROBLEM_NONE ? judge_result(&j) : raise_invalid(module, walk.problem, walk.index);
    PyMem_RawFree(j.named);
    return result;
}

/* ---- which record is the first of its time ---- */

typedef struct {
    int64_t base_offset;
    int64_t base_timestamp;
    int64_t log_append_time;
    int has_log_append_time;
    int64_t timestamp; /* what is looked for, and then what was found */
    int64_t start_offset;
    int64_t offset;
} find_t;

static int
find_first(walk_t *walk, find_t *f)
{
    record_t r;
    while (next_record(walk, &r)) {
        int64_t timestamp =
            f->has_log_append_time ? f->log_append_time : wrapping_add(f->base_timestamp, r.timestamp_delta);
        int64_t offset = wrapping_add(f->base_offset, r.offset_delta);
        if (timestamp >= f->timestamp && offset >= f->start_offset) {
            f->timestamp = timestamp;
            f->offset = offset;
            return 1;
        }
    }
    return 0;
}

static PyObject *
kernel_find_timestamp(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer view;
    walk_t walk;
    find_t f = {0};
    if (expect_arguments("find_timestamp", nargs, 9, 9) < 0 || as_int64(args[4], &f.base_offset) < 0 ||
        as_int64(args[5], &f.base_timestamp) < 0 ||
        as_optional_int64(args[6], &f.log_append_time, &f.has_log_append_time) < 0 ||
        as_int64(args[7], &f.timestamp) < 0 || as_int64(args[8], &f.start_offset) < 0 ||
        open_section(args, &view, &walk) < 0) {
        return NULL;
    }
    int found;
    if (walk.end - walk.p >= LARGE_BYTES) {
        Py_BEGIN_ALLOW_THREADS
        found = find_first(&walk, &f);
        Py_END_ALLOW_THREADS
    }
    else {
        found = find_first(&walk, &f);
    }
    PyBuffer_Release(&view);
    if (found) {
        const int64_t fields[2] = {f.offset, f.timestamp};
        return pack_integers(fields, 2);
    }
    if (walk.problem != PROBLEM_NONE) {
        return raise_invalid(module, walk.problem, walk.index);
    }
    Py_RETURN_NONE;
}

/* ---- a whole batch ---- */

typedef struct {
    int64_t base_offset;
    int32_t length;
    int32_t leader_epoch;
    int8_t magic;
    uint32_t crc;
    int16_t attributes;
    int32_t last_offset_delta;
    int64_t base_timestamp;
    int64_t max_timestamp;
    int64_t producer_id;
    int16_t producer_epoch;
    int32_t base_sequence;
    int32_t count;
} header_t;

static header_t
read_header(const uint8_t *p)
{
    header_t h = {
        .base_offset = (int64_t)load64(p),
        .length = (int32_t)load32(p + 8),
        .leader_epoch = (int32_t)load32(p + 12),
        .magic = (int8_t)p[16],
        .crc = load32(p + 17),
        .attributes = (int16_t)load16(p + 21),
        .last_offset_delta = (int32_t)load32(p + 23),
        .base_timestamp = (int64_t)load64(p + 27),
        .max_timestamp = (int64_t)load64(p + 35),
        .producer_id = (int64_t)load64(p + 43),
        .producer_epoch = (int16_t)load16(p + 51),
        .base_sequence = (int32_t)load32(p + 53),
        .count = (int32_t)load32(p + 57),
    };
    return h;
}

static int
header_problem(const uint8_t *p, const uint8_t *end)
{
    int64_t left = end - p;
    if (left < BYTES_UP_TO_MAGIC) {
        return TORN;
    }
    int32_t length = (int32_t)load32(p + 8);
    uint8_t magic = p[16];
    if (length < MIN_LEGACY_LENGTH) {
        return BAD_LENGTH;
    }
    if (magic != 2) {
        return magic < 2 ? OLD_MAGIC : UNKNOWN_MAGIC;
    }
    if (length < HEADER_BYTES - LOG_OVERHEAD) {
        return BAD_LENGTH;
    }
    return left < LOG_OVERHEAD + (int64_t)length ? TORN : PROBLEM_NONE;
}

/* What follows the header: the CRC, and the records if they are plain and nobody has looked at them before. */
static summary_t
check_body(const uint8_t *p, const header_t *h, int require_key, int without_records)
{
    summary_t s = {PROBLEM_NONE, -1, NO_TIMESTAMP, NO_TIMESTAMP};
    const uint8_t *end = p + LOG_OVERHEAD + h->length;
    if (crc32c_of(0, p + CRC_START, (size_t)(end - p) - CRC_START) != h->crc) {
        s.problem = BAD_CRC;
        return s;
    }
    if ((h->attributes & 0x07) != 0 || without_records) {
        s.highest = h->max_timestamp;
        return s;
    }
    walk_t walk = walk_begin(p + HEADER_BYTES, end, h->count);
    s = summarize(&walk, h->base_timestamp, require_key, 0);
    if (h->attributes & 0x08) { /* LogAppendTime: one timestamp for all */
        s.lowest = s.highest = h->max_timestamp;
    }
    return s;
}

static PyObject *
pack_check(const header_t *h, const summary_t *s)
{
    const int64_t fields[16] = {
        h->base_offset,    h->length,        h->leader_epoch, h->magic,          h->crc,           h->attributes,
        h->last_offset_delta, h->base_timestamp, h->max_timestamp, h->producer_id, h->producer_epoch,
        h->base_sequence,  h->count,         s->problem,      s->lowest,         s->highest,
    };
    return pack_integers(fields, 16);
}

static PyObject *
kernel_check_batch(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer view;
    const uint8_t *p, *end;
    if (expect_arguments("check_batch", nargs, 4, 5) < 0) {
        return NULL;
    }
    int require_key = PyObject_IsTrue(args[3]);
    int without_records = nargs > 4 ? PyObject_IsTrue(args[4]) : 0;
    if (require_key < 0 || without_records < 0 || open_range(args, &view, &p, &end) < 0) {
        return NULL;
    }
    header_t h = {0};
    if (end - p >= HEADER_BYTES) {
        h = read_header(p);
    }
    summary_t s = {header_problem(p, end), -1, NO_TIMESTAMP, NO_TIMESTAMP};
    if (s.problem == PROBLEM_NONE) {
        if (h.length >= LARGE_BYTES) {
            Py_BEGIN_ALLOW_THREADS
            s = check_body(p, &h, require_key, without_records);
            Py_END_ALLOW_THREADS
        }
        else {
            s = check_body(p, &h, require_key, without_records);
        }
    }
    PyBuffer_Release(&view);
    return pack_check(&h, &s);
}

static PyObject *
kernel_crc32c(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer view;
    unsigned long value = 0;
    if (expect_arguments("crc32c", nargs, 1, 2) < 0) {
        return NULL;
    }
    if (nargs == 2) {
        value = PyLong_AsUnsignedLong(args[1]);
        if (value == (unsigned long)-1 && PyErr_Occurred()) {
            return NULL;
        }
    }
    if (PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    uint32_t crc;
    if (view.len >= LARGE_BYTES) {
        Py_BEGIN_ALLOW_THREADS
        crc = crc32c_of((uint32_t)value, view.buf, (size_t)view.len);
        Py_END_ALLOW_THREADS
    }
    else {
        crc = crc32c_of((uint32_t)value, view.buf, (size_t)view.len);
    }
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLong(crc);
}

#endif
