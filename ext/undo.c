/* Undo: notes of changes, and the one call that undoes them; see undo.h. */
#include "undo.h"

#include "execute_ext.h"
#include "rooms.h"

typedef struct undo {
    PyObject_HEAD PyObject *log; /* list of (note, object, value) */
} undo;

typedef enum note { NOTE_CALL, NOTE_SLOT, NOTE_CONTENT, NOTE_EMPTY, NOTE_HOOKS, NOTE_COUNT } note;

static PyTypeObject *undo_type;
static PyObject *missing; /* stands for the value of a slot that does not exist */
static PyObject *no_dict, *no_list, *no_set; /* what empty containers hold; never written */
static PyObject *kinds[NOTE_COUNT];           /* their numbers */

static int append(undo *self, note what, PyObject *object, PyObject *value)
{
    if (self->log == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the undo has begun: it takes no more notes");
        return -1;
    }
    PyObject *entry = PyTuple_Pack(3, kinds[what], object, value);
    int rc = entry != NULL ? PyList_Append(self->log, entry) : -1;
    Py_XDECREF(entry);
    return rc;
}

static PyObject *none_if(bool is_done)
{
    return is_done ? Py_NewRef(Py_None) : NULL;
}

int ms_ext_is_undo(PyObject *object)
{
    if (Py_TYPE(object) != undo_type) {
        PyErr_SetString(PyExc_TypeError, "this takes the Undo of guarded()");
        return -1;
    }
    return 0;
}

int ms_ext_later(PyObject *object, PyObject *function, PyObject *args)
{
    if (ms_ext_is_undo(object) != 0) {
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

int ms_ext_note_slot(PyObject *object, PyObject *holder, PyObject *key)
{
    PyObject *value = look(holder, key);
    PyObject *place = value != NULL ? PyTuple_Pack(2, holder, key) : NULL;
    int rc = place != NULL ? append((undo *)object, NOTE_SLOT, place, value) : -1;
    Py_XDECREF(place);
    Py_XDECREF(value);
    return rc;
}

static PyObject *note_slot(PyObject *object, PyObject *args)
{
    PyObject *holder, *key;
    if (!PyArg_ParseTuple(args, "OO:slot", &holder, &key)) {
        return NULL;
    }
    return none_if(ms_ext_note_slot(object, holder, key) == 0);
}

/* The shared object that stands for an empty dict, list or set; NULL for anything else. Borrowed. */
static PyObject *emptiness_of(PyObject *container)
{
    if (PyDict_Check(container)) {
        return PyDict_Size(container) == 0 ? no_dict : NULL;
    }
    if (PyList_Check(container)) {
        return PyList_Size(container) == 0 ? no_list : NULL;
    }
    return PyAnySet_Check(container) && PySet_Size(container) == 0 ? no_set : NULL;
}

bool ms_ext_is_empty(PyObject *container)
{
    return emptiness_of(container) != NULL;
}

PyObject *ms_ext_note_empty(PyObject *object)
{
    PyObject *containers = PyList_New(0);
    if (containers != NULL && append((undo *)object, NOTE_EMPTY, containers, Py_None) != 0) {
        Py_CLEAR(containers);
    }
    return containers;
}

int ms_ext_note_content(PyObject *object, PyObject *container, PyObject *content)
{
    return append((undo *)object, NOTE_CONTENT, container, content);
}

static PyObject *note_content(PyObject *object, PyObject *container)
{
    PyObject *content = ms_ext_content_of(container);
    int rc = content != NULL ? ms_ext_note_content(object, container, content) : -1;
    Py_XDECREF(content);
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

/* Empties those that are not empty any more. Tries all; -1 if one failed. */
static int empty_again(PyObject *containers)
{
    int rc = 0;
    for (Py_ssize_t i = 0; i < PyList_Size(containers); i++) {
        PyObject *container = PyList_GetItem(containers, i);
        if (emptiness_of(container) != NULL) {
            continue;
        }
        PyObject *none = PyDict_Check(container) ? no_dict : PyList_Check(container) ? no_list : no_set;
        if (ms_ext_put_content(container, none) != 0) {
            rc = -1;
        }
    }
    return rc;
}

static int put_back(PyObject *entry)
{
    PyObject *place = PyTuple_GetItem(entry, 1), *value = PyTuple_GetItem(entry, 2), *done;
    switch ((note)PyLong_AsLong(PyTuple_GetItem(entry, 0))) {
    case NOTE_SLOT:
        return put_slot(place, value);
    case NOTE_CONTENT:
        return ms_ext_put_content(place, value);
    case NOTE_EMPTY:
        return empty_again(place);
    case NOTE_HOOKS:
        return pop_hooks_above(place);
    case NOTE_COUNT:
        break;
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
    MS_EXT_METHOD("signals", ms_ext_note_signals, METH_NOARGS, "/", "() -> None",
                  "Until the undo, signals that Python handles wait; let_signals_in() lets those in that have come. On "
                  "a thread that runs no handlers it does nothing."),
    {NULL, NULL, 0, NULL},
};

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION(
        "guarded", guarded, METH_VARARGS, "function, /, *args", "(Callable[..., Any], Any) -> Any",
        "Calls function(undo, *args). Then undoes the changes noted in the Undo, exception or not, in one call "
        "that nothing can interrupt."),
    {NULL, NULL, 0, NULL},
};

static int make_constants(void)
{
    no_dict = PyDict_New();
    no_list = PyList_New(0);
    no_set = PyFrozenSet_New(NULL);
    bool are_made = no_dict != NULL && no_list != NULL && no_set != NULL;
    for (int i = 0; are_made && i < NOTE_COUNT; i++) {
        kinds[i] = PyLong_FromLong(i);
        are_made = kinds[i] != NULL;
    }
    return are_made ? 0 : -1;
}

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
    if (missing == NULL || make_constants() != 0 || ms_ext_add_type(module, &spec, &undo_type) != 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, methods);
}
