/* Undo: notes of changes, and the one call that undoes them; see undo.h. */
#include "undo.h"

#include "execute_ext.h"
#include "rooms.h"

/* Of the stable ABI, as Python 3.10's limited API lacks newer ones; headers from 3.13 on no longer declare them. */
int PyObject_AsWriteBuffer(PyObject *object, void **bytes, Py_ssize_t *size);
int PyObject_CheckReadBuffer(PyObject *object);
int PyObject_AsReadBuffer(PyObject *object, const void **bytes, Py_ssize_t *size);
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

typedef struct undo {
    PyObject_HEAD PyObject *log; /* list of (note, object, value) */
} undo;

typedef enum note { NOTE_CALL, NOTE_SLOT, NOTE_CONTENT, NOTE_HOOKS } note;

static PyTypeObject *undo_type;
static PyObject *missing; /* stands for the value of a slot that does not exist */
static PyObject *ordered_dict;

static int append(undo *self, note what, PyObject *object, PyObject *value)
{
    if (self->log == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the undo has begun: it takes no more notes");
        return -1;
    }
    PyObject *entry = Py_BuildValue("(iOO)", (int)what, object, value);
    int rc = entry != NULL ? PyList_Append(self->log, entry) : -1;
    Py_XDECREF(entry);
    return rc;
}

static PyObject *none_if(bool is_done)
{
    return is_done ? Py_NewRef(Py_None) : NULL;
}

int ms_ext_later(PyObject *object, PyObject *function, PyObject *args)
{
    if (Py_TYPE(object) != undo_type) {
        PyErr_SetString(PyExc_TypeError, "this takes the Undo of guarded()");
        return -1;
    }
    return append((undo *)object, NOTE_CALL, function, args);
}

/* ---- notes ----------------------------------------------------------------------- */

static PyObject *note_call(PyObject *object, PyObject *args)
{
    Py_ssize_t count = PyTuple_Size(args);
    if (count < 1) {
        PyErr_SetString(PyExc_TypeError, "later() takes a function and its arguments");
        return NULL;
    }
    PyObject *rest = PyTuple_GetSlice(args, 1, count);
    int rc = rest != NULL ? append((undo *)object, NOTE_CALL, PyTuple_GetItem(args, 0), rest) : -1;
    Py_XDECREF(rest);
    return none_if(rc == 0);
}

/* The value of a slot, a new reference; `missing` if it has none. */
static PyObject *look(PyObject *holder, PyObject *key)
{
    PyObject *value;
    if (PyDict_Check(holder)) {
        value = PyDict_GetItemWithError(holder, key);
        Py_XINCREF(value);
        if (value == NULL && PyErr_Occurred()) {
            return NULL;
        }
    } else {
        value = PyObject_GetAttr(holder, key);
        if (value == NULL) { /* an empty cell has no content, an unset slot no value */
            PyErr_Clear();
        }
    }
    if (value == NULL) {
        value = missing;
        Py_INCREF(value);
    }
    return value;
}

static PyObject *note_slot(PyObject *object, PyObject *args)
{
    PyObject *holder, *key;
    if (!PyArg_ParseTuple(args, "OO:slot", &holder, &key)) {
        return NULL;
    }
    PyObject *value = look(holder, key);
    PyObject *place = value != NULL ? PyTuple_Pack(2, holder, key) : NULL;
    int rc = place != NULL ? append((undo *)object, NOTE_SLOT, place, value) : -1;
    Py_XDECREF(place);
    Py_XDECREF(value);
    return none_if(rc == 0);
}

/* A copy of what a container, or memory, holds; of Python's own class where the user's might run code. */
static PyObject *copy_of(PyObject *container)
{
    if (PyDict_Check(container)) {
        return PyDict_Copy(container);
    }
    if (PyList_Check(container)) {
        return PyList_GetSlice(container, 0, PyList_Size(container));
    }
    if (PyAnySet_Check(container)) {
        return PySet_New(container);
    }
    if (PyObject_HasAttrString(container, "extend") && PyObject_CheckReadBuffer(container)) { /* bytearray, array */
        return PySequence_GetSlice(container, 0, PySequence_Size(container));
    }
    return PyObject_CheckReadBuffer(container) ? PyBytes_FromObject(container)
                                               : PyObject_CallMethod(container, "copy", NULL);
}

static PyObject *note_content(PyObject *object, PyObject *container)
{
    PyObject *copy = copy_of(container);
    int rc = copy != NULL ? append((undo *)object, NOTE_CONTENT, container, copy) : -1;
    Py_XDECREF(copy);
    return none_if(rc == 0);
}

static PyObject *hold(PyObject *object, PyObject *lock)
{
    PyObject *release = PyObject_GetAttrString(lock, "release");
    PyObject *none = PyTuple_New(0);
    PyObject *taken = release != NULL && none != NULL ? PyObject_CallMethod(lock, "acquire", NULL) : NULL;
    int rc = taken != NULL ? append((undo *)object, NOTE_CALL, release, none) : -1;
    if (taken != NULL && rc != 0) {
        Py_XDECREF(PyObject_CallObject(release, none));
    }
    Py_XDECREF(taken);
    Py_XDECREF(none);
    Py_XDECREF(release);
    return none_if(rc == 0);
}

/* ---- saved-tensor hooks that hold without a graph ---------------------------------- */

static PyObject *note_hooks(PyObject *object, PyObject *none)
{
    (void)none;
    PyObject *pack = ms_ext_top_pack();
    int rc = pack != NULL ? append((undo *)object, NOTE_HOOKS, pack, Py_None) : -1;
    Py_XDECREF(pack);
    return none_if(rc == 0);
}

/* Pops the pairs above the one whose pack is `wanted`. */
static int pop_hooks_above(PyObject *wanted)
{
    for (;;) {
        PyObject *pack = ms_ext_top_pack();
        bool is_there = pack == wanted || pack == Py_None;
        Py_XDECREF(pack);
        if (pack == NULL || is_there) {
            return pack != NULL ? 0 : -1;
        }
        PyObject *done = PyObject_CallFunctionObjArgs(ms_ext_torch()->pop_hooks, NULL);
        Py_XDECREF(done);
        if (done == NULL) {
            return -1;
        }
    }
}

static PyObject *pack_plainly(PyObject *self, PyObject *tensor)
{
    (void)self;
    return PyObject_CallFunctionObjArgs(ms_ext_torch()->detach, tensor, NULL);
}

static PyMethodDef pack_plainly_def = {"pack_plainly", pack_plainly, METH_O, NULL};

static PyObject *own_hooks(PyObject *object, PyObject *none)
{
    (void)none;
    PyObject *pack = PyCFunction_NewEx(&pack_plainly_def, object, NULL);
    PyObject *noted = pack != NULL ? note_hooks(object, NULL) : NULL;
    PyObject *done = NULL;
    if (noted != NULL) {
        done = PyObject_CallFunctionObjArgs(ms_ext_torch()->push_hooks, pack, pack, NULL);
    }
    Py_XDECREF(noted);
    Py_XDECREF(pack);
    return done;
}

/* ---- putting back -------------------------------------------------------------------- */

static int put_slot(PyObject *place, PyObject *value)
{
    PyObject *holder = PyTuple_GetItem(place, 0), *key = PyTuple_GetItem(place, 1);
    PyObject *now = look(holder, key); /* released at the end: its finalizer may run Python */
    int rc = now != NULL ? 0 : -1;
    if (now != NULL && now != value) {
        if (!PyDict_Check(holder)) {
            rc = PyType_Check(holder) ? PyObject_SetAttr(holder, key, value != missing ? value : NULL)
                                      : PyObject_GenericSetAttr(holder, key, value != missing ? value : NULL);
        } else if (value != missing) {
            rc = PyDict_SetItem(holder, key, value);
        } else {
            rc = PyDict_DelItem(holder, key);
        }
    }
    Py_XDECREF(now);
    return rc;
}

static bool is_same_dict(PyObject *a, PyObject *b)
{
    PyObject *key_a, *key_b, *value_a, *value_b;
    Py_ssize_t at_a = 0, at_b = 0;
    if (PyDict_Size(a) != PyDict_Size(b)) {
        return false;
    }
    while (PyDict_Next(a, &at_a, &key_a, &value_a)) {
        if (!PyDict_Next(b, &at_b, &key_b, &value_b) || key_a != key_b || value_a != value_b) {
            return false;
        }
    }
    return true;
}

static bool is_same_list(PyObject *a, PyObject *b)
{
    Py_ssize_t count = PyList_Size(a);
    if (count != PyList_Size(b)) {
        return false;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (PyList_GetItem(a, i) != PyList_GetItem(b, i)) {
            return false;
        }
    }
    return true;
}

static int call_method(PyObject *object, const char *name, PyObject *argument)
{
    PyObject *done =
        argument != NULL ? PyObject_CallMethod(object, name, "O", argument) : PyObject_CallMethod(object, name, NULL);
    Py_XDECREF(done);
    return done != NULL ? 0 : -1;
}

/* Of a bytearray or an array, whose size may have changed, or of a number or structure of C's. */
static int refill_memory(PyObject *container, PyObject *content)
{
    void *to;
    const void *from;
    Py_ssize_t to_bytes, from_bytes;
    if (PyObject_AsWriteBuffer(container, &to, &to_bytes) != 0 ||
        PyObject_AsReadBuffer(content, &from, &from_bytes) != 0) {
        return -1;
    }
    if (to_bytes != from_bytes) {
        return PySequence_SetSlice(container, 0, PySequence_Size(container), content);
    }
    memcpy(to, from, (size_t)from_bytes);
    return 0;
}

/* Restores in place, so that every holder of the container sees its old content. */
static int refill(PyObject *container, PyObject *content)
{
    if (PyDict_Check(container)) {
        if (is_same_dict(container, content)) {
            return 0;
        }
        int is_ordered = PyDict_CheckExact(container) ? 0 : PyObject_IsInstance(container, ordered_dict);
        if (is_ordered < 0) {
            return -1;
        }
        if (is_ordered == 0) {
            PyDict_Clear(container);
            return PyDict_Update(container, content);
        }
        if (call_method(container, "clear", NULL) != 0) { /* it keeps an order of its own */
            return -1;
        }
        PyObject *items = PyDict_Items(content);
        int rc = items != NULL ? 0 : -1;
        for (Py_ssize_t i = 0; rc == 0 && i < PyList_Size(items); i++) {
            PyObject *pair = PyList_GetItem(items, i);
            rc = PyObject_SetItem(container, PyTuple_GetItem(pair, 0), PyTuple_GetItem(pair, 1));
        }
        Py_XDECREF(items);
        return rc;
    }
    if (PyList_Check(container)) {
        return is_same_list(container, content) ? 0 : PyList_SetSlice(container, 0, PyList_Size(container), content);
    }
    if (PyAnySet_Check(container)) {
        int is_same = PyObject_RichCompareBool(container, content, Py_EQ);
        if (is_same != 0) {
            return is_same < 0 ? -1 : 0;
        }
        return call_method(container, "clear", NULL) == 0 ? call_method(container, "update", content) : -1;
    }
    if (PyObject_CheckReadBuffer(container)) {
        return refill_memory(container, content);
    }
    return call_method(container, "clear", NULL) == 0 ? call_method(container, "extend", content) : -1; /* deque */
}

static int put_content(PyObject *container, PyObject *content)
{
    PyObject *now = copy_of(container); /* keeps the removed items until all is restored: finalizers may run Python */
    if (now == NULL) {
        PyErr_Clear(); /* without memory, they run earlier */
    }
    int rc = refill(container, content);
    Py_XDECREF(now);
    return rc;
}

static int put_back(PyObject *entry)
{
    PyObject *place = PyTuple_GetItem(entry, 1), *value = PyTuple_GetItem(entry, 2), *done;
    switch ((note)PyLong_AsLong(PyTuple_GetItem(entry, 0))) {
    case NOTE_SLOT:
        return put_slot(place, value);
    case NOTE_CONTENT:
        return put_content(place, value);
    case NOTE_HOOKS:
        return pop_hooks_above(place);
    case NOTE_CALL:
        done = PyObject_CallObject(place, value);
        Py_XDECREF(done);
        return done != NULL ? 0 : -1;
    }
    return 0;
}

/* Undoes the notes, the last first. Continues after a failure; -1 with the first exception. It takes no memory of its
 * own, because the call may have failed for want of it. */
static int restore(undo *self)
{
    PyObject *type = NULL, *value = NULL, *traceback = NULL, *log = self->log;
    self->log = NULL;
    for (Py_ssize_t i = PyList_Size(log); i-- > 0;) {
        if (put_back(PyList_GetItem(log, i)) != 0) {
            if (type == NULL) {
                PyErr_Fetch(&type, &value, &traceback);
            } else {
                PyErr_Clear();
            }
        }
    }
    Py_DECREF(log);
    if (type != NULL) {
        PyErr_Restore(type, value, traceback);
    }
    return type != NULL ? -1 : 0;
}

PyObject *ms_ext_guarded(PyObject *function, PyObject *args)
{
    undo *made = PyObject_New(undo, undo_type);
    if (made == NULL) {
        return NULL;
    }
    made->log = PyList_New(0);
    PyObject *first = made->log != NULL ? PyTuple_Pack(1, made) : NULL;
    PyObject *all = first != NULL ? PySequence_Concat(first, args) : NULL;
    PyObject *result = all != NULL ? PyObject_CallObject(function, all) : NULL;
    Py_XDECREF(all);
    Py_XDECREF(first);
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (made->log != NULL && restore(made) != 0) {
        if (type != NULL) {
            PyErr_Clear();
        }
        Py_CLEAR(result);
    }
    if (type != NULL) {
        PyErr_Restore(type, value, traceback);
    }
    Py_DECREF((PyObject *)made);
    return result;
}

PyObject *ms_ext_guarded_one(PyObject *function, PyObject *arg)
{
    PyObject *args = PyTuple_Pack(1, arg);
    PyObject *result = args != NULL ? ms_ext_guarded(function, args) : NULL;
    Py_XDECREF(args);
    return result;
}

static PyObject *guarded(PyObject *module, PyObject *args)
{
    (void)module;
    Py_ssize_t count = PyTuple_Size(args);
    if (count < 1) {
        PyErr_SetString(PyExc_TypeError, "guarded() takes a function and its arguments");
        return NULL;
    }
    PyObject *rest = PyTuple_GetSlice(args, 1, count);
    PyObject *result = rest != NULL ? ms_ext_guarded(PyTuple_GetItem(args, 0), rest) : NULL;
    Py_XDECREF(rest);
    return result;
}

/* ---- type ------------------------------------------------------------------------------- */

static void undo_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    Py_CLEAR(((undo *)object)->log);
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyMethodDef undo_methods[] = {
    MS_EXT_METHOD("later", note_call, METH_VARARGS, "function, /, *args", "(Callable[..., object], Any) -> None",
                  "The undo calls this function, a builtin, with these arguments."),
    MS_EXT_METHOD("slot", note_slot, METH_VARARGS, "holder, key, /", "(object, object) -> None",
                  "Notes a dictionary's item or an object's attribute; the undo restores it, or deletes it if it is "
                  "missing now."),
    MS_EXT_METHOD("content", note_content, METH_O, "container, /", "(object) -> None",
                  "Notes what a container or memory holds, as content() does; the undo restores it in place."),
    MS_EXT_METHOD("hold", hold, METH_O, "lock, /", "(object) -> None", "Takes the lock; the undo releases it."),
    MS_EXT_METHOD("hooks", note_hooks, METH_NOARGS, "/", "() -> None",
                  "The undo pops saved-tensor hooks that are pushed from now on."),
    MS_EXT_METHOD("own_hooks", own_hooks, METH_NOARGS, "/", "() -> None",
                  "Until the undo, autograd holds saved tensors without their graph."),
    {NULL, NULL, 0, NULL},
};

static PyObject *content(PyObject *module, PyObject *container)
{
    (void)module;
    return copy_of(container);
}

static PyObject *set_content(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *container, *content;
    if (!PyArg_ParseTuple(args, "OO:put_content", &container, &content) || put_content(container, content) != 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION("content", content, METH_O, "container, /", "(object) -> Any",
                    "A copy of what a list, dictionary, set, deque, bytearray, array or number of C's holds."),
    MS_EXT_FUNCTION("put_content", set_content, METH_VARARGS, "container, content, /", "(object, object) -> None",
                    "Puts what content() returned back in its place."),
    MS_EXT_FUNCTION(
        "guarded", guarded, METH_VARARGS, "function, /, *args", "(Callable[..., Any], Any) -> Any",
        "Calls function(undo, *args). Then undoes the changes noted in the Undo, exception or not, in one call "
        "that nothing can interrupt."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_undo(PyObject *module)
{
    static char doc[] = "Notes of the changes that guarded() undoes when it ends.";
    static PyType_Slot slots[] = {
        {Py_tp_doc, doc},
        {Py_tp_dealloc, MS_EXT_SLOT(undo_dealloc)},
        {Py_tp_methods, undo_methods},
        {0, NULL},
    };
    static PyType_Spec spec = {
        .name = "memscale._core.Undo",
        .basicsize = sizeof(undo),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
        .slots = slots,
    };
    missing = PyObject_CallObject((PyObject *)&PyBaseObject_Type, NULL);
    PyObject *collections = PyImport_ImportModule("collections");
    ordered_dict = collections != NULL ? PyObject_GetAttrString(collections, "OrderedDict") : NULL;
    Py_XDECREF(collections);
    if (missing == NULL || ordered_dict == NULL || ms_ext_add_type(module, &spec, &undo_type) != 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, methods);
}
