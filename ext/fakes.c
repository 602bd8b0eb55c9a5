/*
 * The device of a fake tensor, told without bytecode. torch asks a dispatch mode for it by an operator, also in
 * Node::add_input_metadata(), which is noexcept: if Python code answered, a KeyboardInterrupt in it would end the
 * process. tracing/static_tracer.py uses this. Tests: tests/python/test_tracer.py.
 */
#include "common.h"
#include "rooms.h"

typedef struct device_first {
    PyObject_HEAD PyObject *asked, *kind, *dispatch;
} device_first;

static PyTypeObject *device_first_type;
static PyObject *method_type; /* types.MethodType */

static PyObject *device_first_of(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *asked, *kind, *dispatch;
    if (!PyArg_ParseTuple(args, "OO!O:device_first", &asked, &PyType_Type, &kind, &dispatch)) {
        return NULL;
    }
    device_first *self = PyObject_New(device_first, device_first_type);
    if (self != NULL) {
        self->asked = Py_NewRef(asked);
        self->kind = Py_NewRef(kind);
        self->dispatch = Py_NewRef(dispatch);
    }
    return (PyObject *)self;
}

static void device_first_dealloc(PyObject *object)
{
    device_first *self = (device_first *)object;
    PyTypeObject *type = Py_TYPE(object);
    Py_DECREF(self->asked);
    Py_DECREF(self->kind);
    Py_DECREF(self->dispatch);
    PyObject_Free(object);
    Py_DECREF(type);
}

/* The tensor if torch asks for the device of one of that kind, else NULL. torch passes a mode, the operator, types and a
 * tuple of operands. */
static PyObject *asked_for(const device_first *self, PyObject *args)
{
    if (PyTuple_Size(args) < 4 || PyTuple_GetItem(args, 1) != self->asked) {
        return NULL;
    }
    PyObject *operands = PyTuple_GetItem(args, 3);
    PyObject *tensor = PyTuple_Check(operands) && PyTuple_Size(operands) == 1 ? PyTuple_GetItem(operands, 0) : NULL;
    return tensor != NULL && (PyObject *)Py_TYPE(tensor) == self->kind ? tensor : NULL;
}

static PyObject *device_first_call(PyObject *object, PyObject *args, PyObject *keywords)
{
    const device_first *self = (device_first *)object;
    PyObject *tensor = asked_for(self, args);
    return tensor != NULL ? PyObject_GetAttrString(tensor, "fake_device")
                          : PyObject_Call(self->dispatch, args, keywords);
}

/* Binds like a function. */
static PyObject *device_first_get(PyObject *object, PyObject *instance, PyObject *type)
{
    (void)type;
    return instance == NULL || instance == Py_None ? Py_NewRef(object)
                                                   : PyObject_CallFunctionObjArgs(method_type, object, instance, NULL);
}

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION("device_first", device_first_of, METH_VARARGS, "operator, kind, dispatch, /",
                    "(object, type, Callable[..., Any]) -> Any",
                    "A method `__torch_dispatch__` that answers `operator` for a tensor of type `kind` with its "
                    "attribute fake_device, without bytecode, and calls `dispatch` for all else."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_fakes(PyObject *module)
{
    static char doc[] = "A __torch_dispatch__ that tells devices itself.";
    static PyType_Slot slots[] = {
        {Py_tp_doc, doc},
        {Py_tp_dealloc, MS_EXT_SLOT(device_first_dealloc)},
        {Py_tp_call, MS_EXT_SLOT(device_first_call)},
        {Py_tp_descr_get, MS_EXT_SLOT(device_first_get)},
        {0, NULL},
    };
    static PyType_Spec spec = {
        .name = "memscale._core.DeviceFirst",
        .basicsize = sizeof(device_first),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
        .slots = slots,
    };
    PyObject *types = PyImport_ImportModule("types");
    method_type = types != NULL ? PyObject_GetAttrString(types, "MethodType") : NULL;
    Py_XDECREF(types);
    if (method_type == NULL || ms_ext_add_type(module, &spec, &device_first_type) != 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, methods);
}
