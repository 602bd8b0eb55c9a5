/*
 * The memory in which a random generator keeps its state, as one value. Reading a state through Python makes hundreds
 * of integers; this compares two kilobytes. python/memscale/generators.py names the places, and has checked first that
 * the state lies there; it is the only user.
 *
 * A Memory holds the owners of its places. Everything runs under the interpreter lock and no bytecode, so that an undo
 * (undo.h) may write. Tests: tests/python/test_generators.py.
 */
#include "common.h"
#include "rooms.h"

enum { PLACES_MAX = 4 };

typedef struct place {
    char *address;
    size_t bytes;
} place;

typedef struct memory {
    PyObject_HEAD PyObject *owners; /* the list of places, which holds their owners */
    PyObject *lock;                 /* of the generator: taken to write; or None */
    PyObject *last;                 /* what the last read gave; NULL at first */
    place places[PLACES_MAX];
    size_t count, bytes;
} memory;

static bool is_same(const memory *self, const char *content)
{
    for (size_t i = 0; i < self->count; i++) {
        if (memcmp(self->places[i].address, content, self->places[i].bytes) != 0) {
            return false;
        }
        content += self->places[i].bytes;
    }
    return true;
}

static PyObject *memory_read(PyObject *object, PyObject *none)
{
    (void)none;
    memory *self = (memory *)object;
    if (self->last == NULL || !is_same(self, PyBytes_AsString(self->last))) {
        PyObject *fresh = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)self->bytes);
        if (fresh == NULL) {
            return NULL;
        }
        char *to = PyBytes_AsString(fresh);
        for (size_t i = 0; i < self->count; i++) {
            memcpy(to, self->places[i].address, self->places[i].bytes);
            to += self->places[i].bytes;
        }
        PyObject *before = self->last;
        self->last = fresh;
        Py_XDECREF(before);
    }
    Py_INCREF(self->last);
    return self->last;
}

static int lock_call(memory *self, const char *name)
{
    PyObject *done = self->lock != Py_None ? PyObject_CallMethod(self->lock, name, NULL) : Py_NewRef(Py_None);
    Py_XDECREF(done);
    return done != NULL ? 0 : -1;
}

static PyObject *memory_write(PyObject *object, PyObject *content)
{
    memory *self = (memory *)object;
    if (!PyBytes_Check(content) || PyBytes_Size(content) != (Py_ssize_t)self->bytes) {
        PyErr_SetString(PyExc_TypeError, "write() takes what read() returned");
        return NULL;
    }
    const char *from = PyBytes_AsString(content);
    if (is_same(self, from)) {
        Py_RETURN_NONE;
    }
    if (lock_call(self, "acquire") != 0) {
        return NULL;
    }
    for (size_t i = 0; i < self->count; i++) {
        memcpy(self->places[i].address, from, self->places[i].bytes);
        from += self->places[i].bytes;
    }
    if (lock_call(self, "release") != 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Reads one (owner, address, bytes) into the next place. */
static int add_place(memory *self, PyObject *row)
{
    PyObject *owner, *address, *bytes;
    uint64_t where, size;
    if (!PyTuple_Check(row) || !PyArg_ParseTuple(row, "OOO:place", &owner, &address, &bytes) ||
        ms_ext_u64(address, "address", &where) != 0 || ms_ext_u64(bytes, "bytes", &size) != 0) {
        return -1;
    }
    self->places[self->count++] = (place){.address = (char *)(uintptr_t)where, .bytes = (size_t)size};
    self->bytes += (size_t)size;
    return 0;
}

static PyTypeObject *memory_type;

static PyObject *generator_memory(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *places, *lock;
    if (!PyArg_ParseTuple(args, "O!O:generator_memory", &PyTuple_Type, &places, &lock)) {
        return NULL;
    }
    Py_ssize_t count = PyTuple_Size(places);
    if (count < 1 || count > PLACES_MAX) {
        PyErr_Format(PyExc_ValueError, "generator_memory() takes 1 to %d places", PLACES_MAX);
        return NULL;
    }
    memory *self = PyObject_New(memory, memory_type);
    if (self == NULL) {
        return NULL;
    }
    self->owners = Py_NewRef(places);
    self->lock = Py_NewRef(lock);
    self->last = NULL;
    self->count = self->bytes = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *row = PyTuple_GetItem(places, i);
        if (add_place(self, row) != 0) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_TypeError, "a place is a tuple of owner, address and bytes");
            }
            Py_DECREF((PyObject *)self);
            return NULL;
        }
    }
    return (PyObject *)self;
}

static void memory_dealloc(PyObject *object)
{
    memory *self = (memory *)object;
    PyTypeObject *type = Py_TYPE(object);
    Py_CLEAR(self->owners);
    Py_CLEAR(self->lock);
    Py_CLEAR(self->last);
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyMethodDef memory_methods[] = {
    MS_EXT_METHOD("read", memory_read, METH_NOARGS, "/", "() -> bytes",
                  "What lies in the places; the object of the last read if nothing has changed."),
    MS_EXT_METHOD("write", memory_write, METH_O, "content, /", "(bytes) -> None",
                  "Puts back what read() returned, with the lock held; nothing is written if nothing has changed."),
    {NULL, NULL, 0, NULL},
};

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION("generator_memory", generator_memory, METH_VARARGS, "places, lock, /",
                    "(tuple[tuple[object, int, int], ...], Any) -> GeneratorMemory",
                    "The memory of a random generator: tuples of the object that owns it, its address and its bytes. "
                    "`lock` is held to write, unless it is None. The caller vouches for the addresses."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_generators(PyObject *module)
{
    static char doc[] = "The memory in which a random generator keeps its state.";
    static PyType_Slot slots[] = {
        {Py_tp_doc, doc},
        {Py_tp_dealloc, MS_EXT_SLOT(memory_dealloc)},
        {Py_tp_methods, memory_methods},
        {0, NULL},
    };
    static PyType_Spec spec = {
        .name = "memscale._core.GeneratorMemory",
        .basicsize = sizeof(memory),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
        .slots = slots,
    };
    return ms_ext_add_type(module, &spec, &memory_type) == 0 ? PyModule_AddFunctions(module, methods) : -1;
}
