/*
 * Settings of the process that operators read, all of base/settings.py's table at once. base/settings.py calls these
 * functions, also during an undo (undo.h), so they run no bytecode.
 *
 * torch's Python getters take 3 us for the whole table, and each recomputed layer reads it three times. So most rows
 * have probes (probes.h), which tell whether a setting has changed since its getter read it. A row without probes, or
 * one whose functions this torch lacks, is read by its getter each time. Tests: tests/python/test_settings.py.
 */
#include "environment.h"
#include "probes.h"
#include "rooms.h"

enum { PROBES_MAX = 64, ROWS_MAX = 128, RECENT = 4 };

/* Values that were read, and what the probes gave then. */
typedef struct reading {
    uint64_t probed[PROBES_MAX];
    PyObject *values; /* tuple, one for each row; NULL if there is none yet */
} reading;

typedef struct settings {
    PyObject_HEAD PyObject *rows; /* tuple of tuples: readers, writers, probes */
    ms_ext_probe probes[PROBES_MAX];
    size_t probe_count;
    Py_ssize_t plain[ROWS_MAX]; /* the rows without probes */
    Py_ssize_t plain_count;
    reading recent[RECENT];
    size_t next; /* the reading to replace */
} settings;

static PyTypeObject *settings_type;

/* ---- reading ------------------------------------------------------------------------------- */

/* Adds a probe if no earlier row has the same one. Returns 1 if this torch lacks its function, or if the table is full. */
static int add_probe(settings *self, PyObject *given)
{
    ms_ext_probe *probe = &self->probes[self->probe_count];
    if (self->probe_count == PROBES_MAX) {
        return 1;
    }
    int rc = ms_ext_read_probe(given, probe);
    bool is_new = rc == 0;
    for (size_t i = 0; is_new && i < self->probe_count; i++) {
        is_new = !ms_ext_is_same_probe(&self->probes[i], probe);
    }
    self->probe_count += is_new;
    return rc;
}

/* Adds the probes of one row; none if this torch lacks one of them. */
static int add_probes(settings *self, Py_ssize_t row, PyObject *probes)
{
    size_t before = self->probe_count;
    int rc = 0;
    for (Py_ssize_t i = 0; rc == 0 && i < PyTuple_Size(probes); i++) {
        rc = add_probe(self, PyTuple_GetItem(probes, i));
    }
    if (rc != 0 || PyTuple_Size(probes) == 0) {
        self->probe_count = before;
        self->plain[self->plain_count++] = row;
    }
    return rc < 0 ? -1 : 0;
}

/* The value of an attribute of a module, borrowed: its readers are the module's dictionary and a name. None stands for
 * one that is missing. NULL with an exception, or without one if the readers are others. */
static PyObject *look_attribute_up(PyObject *readers)
{
    PyObject *holder = PyTuple_Check(readers) ? PyTuple_GetItem(readers, 0) : NULL;
    if (holder == NULL || !PyDict_Check(holder)) {
        return NULL;
    }
    return ms_ext_item_or_none(holder, PyTuple_GetItem(readers, 1));
}

/* A tuple of one part from each reader. */
static PyObject *read_parts(PyObject *readers)
{
    Py_ssize_t count = PyTuple_Size(readers);
    PyObject *value = PyTuple_New(count);
    for (Py_ssize_t i = 0; value != NULL && i < count; i++) {
        PyObject *part = PyObject_CallNoArgs(PyTuple_GetItem(readers, i));
        if (part == NULL || PyTuple_SetItem(value, i, part) != 0) {
            Py_CLEAR(value);
        }
    }
    return value;
}

/* The value of one setting: a new reference. Ellipsis stands for one that torch refuses to read. */
static PyObject *read_setting(PyObject *readers)
{
    if (PyDict_Check(readers)) {
        return PyDict_Copy(readers);
    }
    PyObject *value = look_attribute_up(readers);
    if (value != NULL || PyErr_Occurred() != NULL) {
        return Py_XNewRef(value);
    }
    value = PyTuple_Check(readers) ? read_parts(readers) : PyObject_CallNoArgs(readers);
    if (value == NULL && PyErr_ExceptionMatches(PyExc_RuntimeError)) {
        PyErr_Clear();
        value = Py_NewRef(Py_Ellipsis);
    }
    return value;
}

static PyObject *row_at(const settings *self, Py_ssize_t i)
{
    return PyTuple_GetItem(self->rows, i);
}

/* Reads every setting by its getter. */
static PyObject *read_rows(const settings *self)
{
    Py_ssize_t count = PyTuple_Size(self->rows);
    PyObject *values = PyTuple_New(count);
    for (Py_ssize_t i = 0; values != NULL && i < count; i++) {
        PyObject *value = read_setting(PyTuple_GetItem(row_at(self, i), 0));
        if (value == NULL || PyTuple_SetItem(values, i, value) != 0) {
            Py_CLEAR(values);
        }
    }
    return values;
}

/* Whether a setting still has the value that it had; -1 with an exception. */
static int has_value(PyObject *readers, PyObject *then)
{
    if (PyDict_Check(readers)) { /* compared in its place, not copied */
        return PyObject_RichCompareBool(readers, then, Py_EQ);
    }
    if (look_attribute_up(readers) == then) {
        return 1;
    }
    PyErr_Clear(); /* read_setting() raises it again */
    PyObject *now = read_setting(readers);
    int is_same = now != NULL ? PyObject_RichCompareBool(now, then, Py_EQ) : -1;
    Py_XDECREF(now);
    return is_same;
}

/* Whether all settings still have the values of a reading; -1 with an exception. */
static int still_holds(const settings *self, const reading *read, const uint64_t *probed)
{
    int is_same = read->values != NULL && memcmp(read->probed, probed, self->probe_count * sizeof *probed) == 0;
    for (Py_ssize_t i = 0; is_same == 1 && i < self->plain_count; i++) {
        Py_ssize_t row = self->plain[i];
        is_same = has_value(PyTuple_GetItem(row_at(self, row), 0), PyTuple_GetItem(read->values, row));
    }
    return is_same;
}

static void probe_all(const settings *self, uint64_t *probed)
{
    for (size_t i = 0; i < self->probe_count; i++) {
        probed[i] = ms_ext_call_probe(&self->probes[i]);
    }
}

/* Reads everything by the getters and remembers it. */
static PyObject *read_anew(settings *self, const uint64_t *probed)
{
    PyObject *values = read_rows(self);
    if (values != NULL) {
        reading *place = &self->recent[self->next];
        self->next = (self->next + 1) % RECENT;
        PyObject *before = place->values;
        memcpy(place->probed, probed, self->probe_count * sizeof *probed);
        place->values = Py_NewRef(values);
        Py_XDECREF(before);
    }
    return values;
}

PyObject *ms_ext_read_settings(PyObject *object)
{
    settings *self = (settings *)object;
    uint64_t probed[PROBES_MAX];
    probe_all(self, probed);
    for (size_t back = 1; back <= RECENT; back++) { /* the latest first */
        const reading *read = &self->recent[(self->next + RECENT - back) % RECENT];
        int is_same = still_holds(self, read, probed);
        if (is_same != 0) {
            return is_same > 0 ? Py_NewRef(read->values) : NULL;
        }
    }
    return read_anew(self, probed);
}

static PyObject *settings_read(PyObject *object, PyObject *none)
{
    (void)none;
    return ms_ext_read_settings(object);
}

/* ---- writing ------------------------------------------------------------------------------- */

/* Calls each writer with the value, in parts if it is a tuple. A writer is (function, names of the last parts, whether
 * it takes the value). */
static int write_setting(PyObject *writers, PyObject *value)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(writers); i++) {
        PyObject *function, *names;
        int takes;
        if (!PyArg_ParseTuple(PyTuple_GetItem(writers, i), "OO!p:writer", &function, &PyTuple_Type, &names, &takes)) {
            return -1;
        }
        PyObject *parts = !takes ? PyTuple_New(0) : PyTuple_Check(value) ? Py_NewRef(value) : PyTuple_Pack(1, value);
        Py_ssize_t named = PyTuple_Size(names), plain = parts != NULL ? PyTuple_Size(parts) - named : 0;
        PyObject *args = parts != NULL ? PyTuple_GetSlice(parts, 0, plain) : NULL;
        PyObject *kwargs = named > 0 ? PyDict_New() : NULL;
        int rc = args != NULL && (named == 0 || kwargs != NULL) ? 0 : -1;
        for (Py_ssize_t k = 0; rc == 0 && k < named; k++) {
            rc = PyDict_SetItem(kwargs, PyTuple_GetItem(names, k), PyTuple_GetItem(parts, plain + k));
        }
        PyObject *done = rc == 0 ? PyObject_Call(function, args, kwargs) : NULL;
        Py_XDECREF(kwargs);
        Py_XDECREF(args);
        Py_XDECREF(parts);
        Py_XDECREF(done);
        if (done == NULL) {
            return -1;
        }
    }
    return 0;
}

/* Sets one setting unless it has the value already. Each is read again at its turn, because an earlier one may have
 * changed it. */
static int put_setting(PyObject *row, PyObject *value)
{
    PyObject *now = read_setting(PyTuple_GetItem(row, 0));
    int is_same = now == NULL ? -1 : now == Py_Ellipsis ? 1 : PyObject_RichCompareBool(now, value, Py_EQ);
    Py_XDECREF(now);
    return is_same != 0 ? (is_same < 0 ? -1 : 0) : write_setting(PyTuple_GetItem(row, 1), value);
}

/* The first error of several steps, which is raised after the last. */
typedef struct first_error {
    PyObject *type, *value, *traceback;
} first_error;

static void note_error(first_error *self)
{
    if (self->type == NULL) {
        PyErr_Fetch(&self->type, &self->value, &self->traceback);
    } else {
        PyErr_Clear();
    }
}

/* Sets the settings of the rows from `first` to before `end`, in their order; if `now` isn't NULL, only those whose value
 * in it differs. */
static int put_rows(const settings *self, Py_ssize_t first, Py_ssize_t end, PyObject *values, PyObject *now)
{
    first_error error = {0};
    for (Py_ssize_t i = first; i < end; i++) {
        PyObject *wanted = PyTuple_GetItem(values, i);
        int is_same = now != NULL ? PyObject_RichCompareBool(PyTuple_GetItem(now, i), wanted, Py_EQ) : 0;
        if (is_same < 0 || (is_same == 0 && wanted != Py_Ellipsis && put_setting(row_at(self, i), wanted) != 0)) {
            note_error(&error);
        }
    }
    if (error.type != NULL) {
        PyErr_Restore(error.type, error.value, error.traceback);
    }
    return error.type != NULL ? -1 : 0;
}

/* Whether these settings have these values; -1 with an exception. `now` gets what they have. */
static int are_set(settings *self, Py_ssize_t first, Py_ssize_t end, PyObject *values, PyObject **now)
{
    *now = ms_ext_read_settings((PyObject *)self);
    int is_same = *now == NULL ? -1 : 1;
    for (Py_ssize_t i = first; is_same == 1 && *now != values && i < end; i++) {
        is_same = PyObject_RichCompareBool(PyTuple_GetItem(*now, i), PyTuple_GetItem(values, i), Py_EQ);
    }
    return is_same;
}

static int put(settings *self, PyObject *values, Py_ssize_t first, Py_ssize_t end)
{
    PyObject *now = NULL, *again = NULL;
    int is_done = are_set(self, first, end, values, &now);
    if (is_done == 0 && put_rows(self, first, end, values, now) == 0) {
        is_done = are_set(self, first, end, values, &again); /* one setting may have changed others */
    }
    if (is_done != 1) {
        PyErr_Clear(); /* what failed is tried again, last */
        is_done = put_rows(self, first, end, values, NULL) == 0;
    }
    Py_XDECREF(now);
    Py_XDECREF(again);
    return is_done == 1 ? 0 : -1;
}

int ms_ext_put_settings(PyObject *table, PyObject *values)
{
    return put((settings *)table, values, 0, PyTuple_Size(values));
}

bool ms_ext_is_settings(PyObject *table)
{
    bool is = Py_TYPE(table) == settings_type;
    if (!is) {
        PyErr_SetString(PyExc_TypeError, "this takes a table of settings");
    }
    return is;
}

bool ms_ext_are_settings(PyObject *table, PyObject *values)
{
    bool are = Py_TYPE(table) == settings_type && PyTuple_Check(values) &&
               PyTuple_Size(values) == PyTuple_Size(((settings *)table)->rows);
    if (!are) {
        PyErr_SetString(PyExc_ValueError, "a table of settings is put as read() returned it");
    }
    return are;
}

static PyObject *put_function(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *table, *values;
    Py_ssize_t first = 0, end = -1;
    if (!PyArg_ParseTuple(args, "OO|nn:put_settings", &table, &values, &first, &end) ||
        !ms_ext_are_settings(table, values)) {
        return NULL;
    }
    Py_ssize_t count = PyTuple_Size(values);
    if (first < 0 || end > count) {
        PyErr_SetString(PyExc_ValueError, "the table has no such rows");
        return NULL;
    }
    if (put((settings *)table, values, first, end >= 0 ? end : count) != 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* ---- type ---------------------------------------------------------------------------------- */

static PyObject *new_settings(PyObject *module, PyObject *rows)
{
    (void)module;
    Py_ssize_t count = PyTuple_Check(rows) ? PyTuple_Size(rows) : -1;
    if (count < 0 || count > ROWS_MAX) {
        PyErr_Format(PyExc_TypeError, "settings() takes a tuple of at most %d rows", ROWS_MAX);
        return NULL;
    }
    settings *self = PyObject_New(settings, settings_type);
    if (self == NULL) {
        return NULL;
    }
    memset((char *)self + sizeof self->ob_base, 0, sizeof *self - sizeof self->ob_base);
    self->rows = Py_NewRef(rows);
    int rc = 0;
    for (Py_ssize_t i = 0; rc == 0 && i < count; i++) {
        PyObject *readers, *writers, *probes;
        bool is_row =
            PyTuple_Check(row_at(self, i)) &&
            PyArg_ParseTuple(row_at(self, i), "OO!O!:row", &readers, &PyTuple_Type, &writers, &PyTuple_Type, &probes);
        rc = is_row ? add_probes(self, i, probes) : -1;
    }
    if (rc != 0) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "a row is a tuple of readers, writers and probes");
        }
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    return (PyObject *)self;
}

static PyObject *plain_rows(PyObject *object, PyObject *none)
{
    (void)none;
    settings *self = (settings *)object;
    PyObject *found = PyList_New(self->plain_count);
    for (Py_ssize_t i = 0; found != NULL && i < self->plain_count; i++) {
        if (PyList_SetItem(found, i, PyLong_FromSsize_t(self->plain[i])) != 0) {
            Py_CLEAR(found);
        }
    }
    return found;
}

static void settings_dealloc(PyObject *object)
{
    settings *self = (settings *)object;
    PyTypeObject *type = Py_TYPE(object);
    for (size_t i = 0; i < RECENT; i++) {
        Py_CLEAR(self->recent[i].values);
    }
    Py_CLEAR(self->rows);
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyMethodDef settings_methods[] = {
    MS_EXT_METHOD(
        "read", settings_read, METH_NOARGS, "/", "() -> tuple[Any, ...]",
        "The value of each setting; the object of an earlier read if nothing has changed. Ellipsis stands for "
        "a setting whose reader raises RuntimeError."),
    MS_EXT_METHOD("plain_rows", plain_rows, METH_NOARGS, "/", "() -> list[int]",
                  "The rows that have no probes in this torch."),
    {NULL, NULL, 0, NULL},
};

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION(
        "settings", new_settings, METH_O, "rows, /", "(tuple[tuple[Any, Any, Any], ...]) -> Settings",
        "A table of settings. A row has readers: a function, a tuple of functions for the parts of a tuple, a "
        "dictionary, "
        "or a dictionary with a key; writers: "
        "tuples of a function, the names under which it takes the last parts, and whether it takes the value; and "
        "probes: tuples of the symbol of a function of torch, the bytes of its result, and its arguments, which are "
        "numbers, None for torch's context, or (parser's symbol, name) for an enumerator; without arguments (None), of "
        "a variable of torch."),
    MS_EXT_FUNCTION(
        "put_settings", put_function, METH_VARARGS, "table, values, first=0, end=-1, /",
        "(Settings, tuple[Any, ...], int, int) -> None",
        "Sets those settings, of the rows from first to before end, that differ from what read() returned, in "
        "the order of the rows. Ellipsis leaves a setting alone."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_settings(PyObject *module)
{
    static char doc[] = "A table of the process's settings.";
    static PyType_Slot slots[] = {
        {Py_tp_doc, doc},
        {Py_tp_dealloc, MS_EXT_SLOT(settings_dealloc)},
        {Py_tp_methods, settings_methods},
        {0, NULL},
    };
    static PyType_Spec spec = {
        .name = "memscale._core.Settings",
        .basicsize = sizeof(settings),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
        .slots = slots,
    };
    return ms_ext_add_type(module, &spec, &settings_type) == 0 ? PyModule_AddFunctions(module, methods) : -1;
}
