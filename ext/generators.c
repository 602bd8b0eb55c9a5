/*
 * The memory in which a random generator keeps its state, as one value. Reading a state through Python makes hundreds
 * of integers; this compares two kilobytes. python/memscale/generators.py names the places, and has checked first that
 * the state lies there; it is the only user.
 *
 * torch's operators draw without the interpreter lock. So the memory of torch's generator is only compared, and its own
 * functions, which take its lock, read and set the state.
 *
 * A Memory holds the owners of its places. Everything runs under the interpreter lock and no bytecode, so that an undo
 * (undo.h) may write. Tests: tests/python/test_generators.py.
 */
#include "environment.h"
#include "rooms.h"

#ifdef __APPLE__
#include <malloc/malloc.h>
#else
#include <malloc.h>
#endif

enum { PLACES_MAX = 4 };

typedef struct place {
    char *address;
    size_t bytes;
} place;

typedef struct memory {
    PyObject_HEAD PyObject *owners; /* the list of places, which holds their owners */
    PyObject *lock;                 /* of the generator: taken to write; or None */
    PyObject *get, *set;            /* the generator's own functions; None if the memory itself is read and written */
    PyObject *last;                 /* what the last read gave; NULL at first */
    place places[PLACES_MAX];
    size_t count, bytes;
} memory;

/* The bytes of the places at the time that a state was read. Functions return the state beside them, as a pair. */
static PyObject *content_of(PyObject *state)
{
    return PyTuple_Check(state) ? PyTuple_GetItem(state, 0) : state;
}

static bool is_same(const memory *self, PyObject *state)
{
    PyObject *content = content_of(state);
    const char *bytes = PyBytes_AsString(content);
    if (PyBytes_Size(content) != (Py_ssize_t)self->bytes) { /* it changed while it was read */
        return false;
    }
    for (size_t i = 0; i < self->count; i++) {
        if (memcmp(self->places[i].address, bytes, self->places[i].bytes) != 0) {
            return false;
        }
        bytes += self->places[i].bytes;
    }
    return true;
}

static PyObject *copy_places(const memory *self)
{
    PyObject *content = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)self->bytes);
    char *to = content != NULL ? PyBytes_AsString(content) : NULL;
    for (size_t i = 0; to != NULL && i < self->count; i++) {
        memcpy(to, self->places[i].address, self->places[i].bytes);
        to += self->places[i].bytes;
    }
    return content;
}

/* A pair: the bytes of the places, and the state that the generator's function returns. */
static PyObject *ask_generator(const memory *self)
{
    PyObject *content = copy_places(self);
    PyObject *state = content != NULL ? PyObject_CallNoArgs(self->get) : NULL;
    if (state != NULL && !is_same(self, content)) { /* another thread draws */
        Py_DECREF(content);
        content = PyBytes_FromStringAndSize(NULL, 0);
    }
    PyObject *both = state != NULL && content != NULL ? PyTuple_Pack(2, content, state) : NULL;
    Py_XDECREF(content);
    Py_XDECREF(state);
    return both;
}

static PyObject *memory_read(PyObject *object, PyObject *none)
{
    (void)none;
    memory *self = (memory *)object;
    if (self->last == NULL || !is_same(self, self->last)) {
        PyObject *fresh = self->get != Py_None ? ask_generator(self) : copy_places(self);
        if (fresh == NULL) {
            return NULL;
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

static int write_places(memory *self, PyObject *content)
{
    const char *from = PyBytes_AsString(content);
    if (lock_call(self, "acquire") != 0) {
        return -1;
    }
    for (size_t i = 0; i < self->count; i++) {
        memcpy(self->places[i].address, from, self->places[i].bytes);
        from += self->places[i].bytes;
    }
    return lock_call(self, "release");
}

static int write_by_function(memory *self, PyObject *state)
{
    PyObject *done = PyObject_CallFunctionObjArgs(self->set, state, NULL);
    Py_XDECREF(done);
    return done != NULL ? 0 : -1;
}

static int write_state(memory *self, PyObject *state)
{
    bool has_functions = self->set != Py_None;
    bool is_state = has_functions ? PyTuple_Check(state) && PyTuple_Size(state) == 2 : PyBytes_Check(state);
    if (!is_state || !PyBytes_Check(content_of(state)) ||
        (!has_functions && PyBytes_Size(state) != (Py_ssize_t)self->bytes)) {
        PyErr_SetString(PyExc_TypeError, "write() takes what read() returned");
        return -1;
    }
    if (is_same(self, state)) {
        return 0;
    }
    return has_functions ? write_by_function(self, PyTuple_GetItem(state, 1)) : write_places(self, state);
}

static PyObject *memory_write(PyObject *object, PyObject *state)
{
    if (write_state((memory *)object, state) != 0) {
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
    PyObject *places, *lock = Py_None, *get = Py_None, *set = Py_None;
    if (!PyArg_ParseTuple(args, "O!|OOO:generator_memory", &PyTuple_Type, &places, &lock, &get, &set)) {
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
    self->get = Py_NewRef(get);
    self->set = Py_NewRef(set);
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
    Py_CLEAR(self->get);
    Py_CLEAR(self->set);
    Py_CLEAR(self->last);
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyObject *heap_bytes(PyObject *module, PyObject *number)
{
    (void)module;
    uint64_t address;
    if (ms_ext_u64(number, "address", &address) != 0) {
        return NULL;
    }
#ifdef __APPLE__
    return PyLong_FromSize_t(malloc_size((void *)(uintptr_t)address));
#else
    return PyLong_FromSize_t(malloc_usable_size((void *)(uintptr_t)address));
#endif
}

/* ---- several generators ------------------------------------------------------------------- */

PyObject *ms_ext_item_or_none(PyObject *holder, PyObject *key)
{
    PyObject *value = PyDict_GetItemWithError(holder, key);
    return value != NULL || PyErr_Occurred() != NULL ? value : Py_None;
}

static PyObject *read_source(PyObject *source)
{
    if (!PyTuple_Check(source)) {
        return memory_read(source, NULL);
    }
    PyObject *first = PyTuple_GetItem(source, 0);
    return PyDict_Check(first) ? Py_XNewRef(ms_ext_item_or_none(first, PyTuple_GetItem(source, 1)))
                               : PyObject_CallNoArgs(first);
}

static int write_source(PyObject *source, PyObject *state)
{
    if (!PyTuple_Check(source)) {
        return write_state((memory *)source, state);
    }
    PyObject *first = PyTuple_GetItem(source, 0), *second = PyTuple_GetItem(source, 1);
    if (PyDict_Check(first)) {
        return PyDict_GetItemWithError(first, second) == state ? 0 : PyDict_SetItem(first, second, state);
    }
    PyObject *done = PyObject_CallFunctionObjArgs(second, state, NULL);
    Py_XDECREF(done);
    return done != NULL ? 0 : -1;
}

static bool are_sources(PyObject *sources)
{
    bool are = PyTuple_Check(sources);
    for (Py_ssize_t i = 0; are && i < PyTuple_Size(sources); i++) {
        PyObject *source = PyTuple_GetItem(sources, i);
        are = PyTuple_Check(source) ? PyTuple_Size(source) == 2 : Py_TYPE(source) == memory_type;
    }
    if (!are) {
        PyErr_SetString(PyExc_TypeError, "sources are a tuple of memories and of pairs");
    }
    return are;
}

PyObject *ms_ext_read_states(PyObject *sources)
{
    PyObject *states = are_sources(sources) ? PyTuple_New(PyTuple_Size(sources)) : NULL;
    for (Py_ssize_t i = 0; states != NULL && i < PyTuple_Size(sources); i++) {
        PyObject *state = read_source(PyTuple_GetItem(sources, i));
        if (state == NULL || PyTuple_SetItem(states, i, state) != 0) {
            Py_CLEAR(states);
        }
    }
    return states;
}

static PyObject *read_states(PyObject *module, PyObject *sources)
{
    (void)module;
    return ms_ext_read_states(sources);
}

int ms_ext_write_states(PyObject *sources, PyObject *states, PyObject *now)
{
    PyObject *type = NULL, *value = NULL, *traceback = NULL;
    for (Py_ssize_t i = 0; i < PyTuple_Size(sources); i++) {
        PyObject *state = PyTuple_GetItem(states, i);
        if ((now != NULL && state == PyTuple_GetItem(now, i)) ||
            write_source(PyTuple_GetItem(sources, i), state) == 0) {
            continue;
        }
        if (type == NULL) {
            PyErr_Fetch(&type, &value, &traceback);
        } else {
            PyErr_Clear();
        }
    }
    if (type != NULL) {
        PyErr_Restore(type, value, traceback);
        return -1;
    }
    return 0;
}

bool ms_ext_are_states(PyObject *sources, PyObject *states)
{
    bool are = are_sources(sources);
    if (are && (!PyTuple_Check(states) || PyTuple_Size(states) != PyTuple_Size(sources))) {
        PyErr_SetString(PyExc_ValueError, "states are a tuple with one for each source");
        are = false;
    }
    return are;
}

static PyObject *write_states(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *sources, *states;
    if (!PyArg_ParseTuple(args, "OO:write_states", &sources, &states) || !ms_ext_are_states(sources, states) ||
        ms_ext_write_states(sources, states, NULL) != 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* ---- guards -------------------------------------------------------------------------------- */

static int holds_guard(PyObject *guard)
{
    if (!PyTuple_Check(guard) || PyTuple_Size(guard) != 3) {
        PyErr_SetString(PyExc_TypeError, "a guard is a tuple of holder, name and object");
        return -1;
    }
    PyObject *holder = PyTuple_GetItem(guard, 0), *key = PyTuple_GetItem(guard, 1), *value = PyTuple_GetItem(guard, 2);
    if (PyDict_Check(holder)) {
        PyObject *item = ms_ext_item_or_none(holder, key);
        return item != NULL ? item == value : -1;
    }
    PyObject *now = PyObject_GetAttr(holder, key);
    int is_same = now == value;
    is_same = now == NULL ? -1 : is_same;
    Py_XDECREF(now);
    return is_same;
}

int ms_ext_guards_hold(PyObject *guards)
{
    int hold = PyTuple_Check(guards);
    for (Py_ssize_t i = 0; hold == 1 && i < PyTuple_Size(guards); i++) {
        hold = holds_guard(PyTuple_GetItem(guards, i));
    }
    return hold;
}

static PyObject *guards_hold(PyObject *module, PyObject *guards)
{
    (void)module;
    int hold = ms_ext_guards_hold(guards);
    return hold < 0 ? NULL : PyBool_FromLong(hold);
}

static PyMethodDef memory_methods[] = {
    MS_EXT_METHOD("read", memory_read, METH_NOARGS, "/", "() -> Any",
                  "What lies in the places, with what `get` returns if it was given; the object of the last read if "
                  "nothing has changed."),
    MS_EXT_METHOD("write", memory_write, METH_O, "state, /", "(Any) -> None",
                  "Puts back what read() returned, with the lock held, or by `set`; nothing is done if nothing has "
                  "changed."),
    {NULL, NULL, 0, NULL},
};

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION("generator_memory", generator_memory, METH_VARARGS, "places, lock=None, get=None, set=None, /",
                    "(tuple[tuple[object, int, int], ...], Any, Any, Any) -> GeneratorMemory",
                    "The memory of a random generator: tuples of the object that owns it, its address and its bytes. "
                    "`lock` is held to write, unless it is None. If `get` and `set` are given, they read and set the "
                    "state, and the memory only tells whether it has changed. The caller vouches for the addresses."),
    MS_EXT_FUNCTION("heap_bytes", heap_bytes, METH_O, "address, /", "(int) -> int",
                    "The bytes of the block of memory that malloc() returned this address for."),
    MS_EXT_FUNCTION("read_states", read_states, METH_O, "sources, /",
                    "(tuple[GeneratorMemory | tuple[Any, Any], ...]) -> tuple[Any, ...]",
                    "The state of each source: a GeneratorMemory; two functions, which read a state and set it; or a "
                    "dictionary and a key."),
    MS_EXT_FUNCTION("write_states", write_states, METH_VARARGS, "sources, states, /",
                    "(tuple[GeneratorMemory | tuple[Any, Any], ...], tuple[Any, ...]) -> None",
                    "Puts back what read_states() returned. The first error is raised once all others are set."),
    MS_EXT_FUNCTION("guards_hold", guards_hold, METH_O, "guards, /", "(tuple[tuple[Any, str, Any], ...]) -> bool",
                    "Whether each dictionary, or object, still has this object under this name; None stands for a "
                    "missing item of a dictionary."),
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
