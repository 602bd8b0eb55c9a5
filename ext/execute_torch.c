/*
 * Objects of torch that the execute room uses, looked up once, and the properties of tensors that
 * pack and unpack read. Nothing here keeps a tensor.
 */
#include "execute_ext.h"

static ms_torch torch_table;
static bool torch_is_ready;

/* `root.a.b` for the path "a.b", as a new reference. */
static PyObject *look_up(PyObject *root, const char *path)
{
    PyObject *object = root;
    Py_INCREF(object);
    while (object != NULL && *path != '\0') {
        char name[64];
        size_t length = strcspn(path, ".");
        if (length >= sizeof name) {
            Py_CLEAR(object);
            PyErr_SetString(PyExc_ValueError, "a name of torch is too long");
            break;
        }
        memcpy(name, path, length);
        name[length] = '\0';
        path += length + (path[length] == '.');
        PyObject *next = PyObject_GetAttrString(object, name);
        Py_DECREF(object);
        object = next;
    }
    return object;
}

typedef struct torch_item {
    PyObject **place;
    const char *path;
} torch_item;

static int look_up_objects(PyObject *torch)
{
    ms_torch *t = &torch_table;
    const torch_item items[] = {
        {&t->tensor_type, "Tensor"},
        {&t->parameter_type, "nn.Parameter"},
        {&t->detach, "Tensor.detach"},
        {&t->untyped_storage, "Tensor.untyped_storage"},
        {&t->stride, "Tensor.stride"},
        {&t->tensor_data_ptr, "Tensor.data_ptr"},
        {&t->storage_offset, "Tensor.storage_offset"},
        {&t->is_conj, "Tensor.is_conj"},
        {&t->is_neg, "Tensor.is_neg"},
        {&t->set_, "Tensor.set_"},
        {&t->copy_, "Tensor.copy_"},
        {&t->new_empty_strided, "Tensor.new_empty_strided"},
        {&t->weak_ref, "UntypedStorage._weak_ref"},
        {&t->nbytes, "UntypedStorage.nbytes"},
        {&t->data_ptr, "UntypedStorage.data_ptr"},
        {&t->expired, "UntypedStorage._expired"},
        {&t->new_with_weak_ptr, "UntypedStorage._new_with_weak_ptr"},
        {&t->free_weak_ref, "UntypedStorage._free_weak_ref"},
        {&t->push_hooks, "_C._autograd._push_saved_tensors_default_hooks"},
        {&t->pop_hooks, "_C._autograd._pop_saved_tensors_default_hooks"},
        {&t->hooks_enabled, "_C._autograd._saved_tensors_hooks_is_enabled"},
        {&t->sequence_number, "autograd._get_sequence_nr"},
        {&t->empty, "empty"},
        {&t->uint8, "uint8"},
        {&t->int64, "int64"},
        {&t->truth, "bool"},
    };
    for (size_t i = 0; i < sizeof items / sizeof items[0]; i++) {
        *items[i].place = look_up(torch, items[i].path);
        if (*items[i].place == NULL) {
            return -1;
        }
    }
    t->use_count = look_up(torch, "_C._storage_Use_Count");
    PyErr_Clear();
    return 0;
}

static int intern_names(void)
{
    ms_torch *t = &torch_table;
    const torch_item items[] = {
        {&t->n_version, "_version"},    {&t->n_shape, "shape"},
        {&t->n_dtype, "dtype"},         {&t->n_device, "device"},
        {&t->n_is_leaf, "is_leaf"},     {&t->n_requires_grad, "requires_grad"},
        {&t->n_is_cpu, "is_cpu"},       {&t->n_cdata, "_cdata"},
        {&t->n_data, "data"},           {&t->n_is_quantized, "is_quantized"},
        {&t->n_is_nested, "is_nested"}, {&t->n_nbytes, "nbytes"},
        {&t->n_f_back, "f_back"},       {&t->n_base, "_base"},
    };
    for (size_t i = 0; i < sizeof items / sizeof items[0]; i++) {
        *items[i].place = PyUnicode_InternFromString(items[i].path);
        if (*items[i].place == NULL) {
            return -1;
        }
    }
    return 0;
}

static int make_constants(void)
{
    ms_torch *t = &torch_table;
    t->zero_args = Py_BuildValue("(i)", 0);
    t->empty_bytes_kwargs = Py_BuildValue("{s:O,s:s}", "dtype", t->uint8, "device", "cpu");
    if (t->zero_args == NULL || t->empty_bytes_kwargs == NULL) {
        return -1;
    }
    t->empty_tensor = PyObject_Call(t->empty, t->zero_args, t->empty_bytes_kwargs);
    return t->empty_tensor != NULL ? 0 : -1;
}

static int find_top(PyObject *torch)
{
    PyObject *autograd = look_up(torch, "_C._autograd");
    int rc = autograd != NULL ? ms_ext_find_top(&torch_table, autograd) : -1;
    Py_XDECREF(autograd);
    return rc;
}

const ms_torch *ms_ext_torch(void)
{
    if (torch_is_ready) {
        return &torch_table;
    }
    PyObject *torch = PyImport_ImportModule("torch");
    if (torch == NULL) {
        return NULL;
    }
    int rc = look_up_objects(torch) != 0 || intern_names() != 0 || make_constants() != 0 || find_top(torch) != 0;
    Py_DECREF(torch);
    torch_is_ready = rc == 0;
    return torch_is_ready ? &torch_table : NULL;
}

/* ---- questions ------------------------------------------------------------------ */

static int truth_of(PyObject *answer)
{
    if (answer == NULL) {
        return -1;
    }
    int truth = answer == Py_True ? 1 : answer == Py_False ? 0 : PyObject_IsTrue(answer);
    Py_DECREF(answer);
    return truth;
}

int ms_ext_flag(PyObject *object, PyObject *name)
{
    return truth_of(PyObject_GetAttr(object, name));
}

int ms_ext_ask(PyObject *method, PyObject *object)
{
    return truth_of(PyObject_CallFunctionObjArgs(method, object, NULL));
}

int ms_ext_version_of(PyObject *tensor, uint64_t *version)
{
    PyObject *number = PyObject_GetAttr(tensor, torch_table.n_version);
    if (number == NULL) {
        return -1;
    }
    *version = PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    return PyErr_Occurred() != NULL ? -1 : 0;
}

int ms_ext_storage_of(PyObject *tensor, PyObject **storage, uintptr_t *identity)
{
    const ms_torch *t = &torch_table;
    PyObject *found = PyObject_CallFunctionObjArgs(t->untyped_storage, tensor, NULL);
    PyObject *number = found != NULL ? PyObject_GetAttr(found, t->n_cdata) : NULL;
    if (number == NULL) {
        Py_XDECREF(found);
        PyErr_Clear(); /* sparse and other tensors have none */
        return -1;
    }
    *identity = (uintptr_t)PyLong_AsVoidPtr(number);
    Py_DECREF(number);
    *storage = found;
    return 0;
}

/* ---- names -------------------------------------------------------------------------- */

enum { NAMES_MAX = 128 };

static struct {
    PyObject *object;
    char name[48];
} names[NAMES_MAX];
static size_t name_count;

static const char *intern_new(PyObject *object)
{
    if (name_count == NAMES_MAX) {
        PyErr_SetString(PyExc_RuntimeError, "too many kinds of tensors and devices");
        return NULL;
    }
    PyObject *text = PyObject_Str(object);
    const char *utf8 = text != NULL ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    if (utf8 == NULL) {
        Py_XDECREF(text);
        return NULL;
    }
    size_t length = strlen(utf8);
    char *name = names[name_count].name;
    length = length < sizeof names[0].name - 1 ? length : sizeof names[0].name - 1;
    memcpy(name, utf8, length);
    name[length] = '\0';
    Py_DECREF(text);
    Py_INCREF(object);
    names[name_count++].object = object;
    return name;
}

const char *ms_ext_intern_name(PyObject *object)
{
    for (size_t i = 0; i < name_count; i++) {
        if (names[i].object == object) {
            return names[i].name;
        }
    }
    /* Devices may be equal without being the same object. */
    for (size_t i = 0; i < name_count; i++) {
        int equal =
            Py_TYPE(object) == Py_TYPE(names[i].object) ? PyObject_RichCompareBool(object, names[i].object, Py_EQ) : 0;
        if (equal != 0) {
            return equal > 0 ? names[i].name : NULL;
        }
    }
    return intern_new(object);
}

static int sizes_of(PyObject *shape, int64_t *sizes, uint32_t *rank)
{
    Py_ssize_t count = PyTuple_Size(shape);
    if (count < 0 || count > MS_RECORD_RANK_MAX) {
        if (count > 0) {
            PyErr_SetString(PyExc_OverflowError, "a tensor has too many dimensions");
        }
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        sizes[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
        if (sizes[i] == -1) {
            PyErr_Clear(); /* a nested tensor's size is a symbol; all symbols count as -1 */
        }
    }
    *rank = (uint32_t)count;
    return 0;
}

/* The shape, a new reference. A nested tensor of the strided layout has none, and counts as one of no dimensions. */
static PyObject *shape_of(PyObject *tensor)
{
    PyObject *shape = PyObject_GetAttr(tensor, torch_table.n_shape);
    if (shape == NULL && PyErr_ExceptionMatches(PyExc_RuntimeError)) {
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        if (ms_ext_flag(tensor, torch_table.n_is_nested) == 1) {
            Py_XDECREF(type);
            Py_XDECREF(value);
            Py_XDECREF(traceback);
            return PyTuple_New(0);
        }
        PyErr_Restore(type, value, traceback);
    }
    return shape;
}

int ms_ext_record_of(PyObject *tensor, int64_t *sizes, ms_record *record)
{
    const ms_torch *t = &torch_table;
    int rc = -1;
    PyObject *device = NULL;
    PyObject *shape = shape_of(tensor);
    PyObject *dtype = PyObject_GetAttr(tensor, t->n_dtype);
    record->size = sizes;
    if (shape == NULL || dtype == NULL || sizes_of(shape, sizes, &record->rank) != 0 ||
        (record->dtype = ms_ext_intern_name(dtype)) == NULL) {
        goto cleanup;
    }
    int is_cpu = ms_ext_flag(tensor, t->n_is_cpu);
    if (is_cpu == 1) {
        record->device = "cpu";
    } else if (is_cpu < 0 || (device = PyObject_GetAttr(tensor, t->n_device)) == NULL ||
               (record->device = ms_ext_intern_name(device)) == NULL) {
        goto cleanup;
    }
    rc = 0;
cleanup:
    Py_XDECREF(shape);
    Py_XDECREF(dtype);
    Py_XDECREF(device);
    return rc;
}

PyObject *ms_ext_raise_version(PyObject *tensor_type_name, PyObject *shape, uint64_t now, uint64_t saved)
{
    PyObject *list = PySequence_List(shape);
    if (list != NULL) {
        PyErr_Format(PyExc_RuntimeError,
                     "one of the variables needed for gradient computation has been modified by an inplace "
                     "operation: [%U %S] is at version %llu; expected version %llu instead. Hint: enable "
                     "anomaly detection to find the operation that failed to compute its gradient, with "
                     "torch.autograd.set_detect_anomaly(True).",
                     tensor_type_name, list, (unsigned long long)now, (unsigned long long)saved);
        Py_DECREF(list);
    }
    return NULL;
}

/* The number of the operator that autograd is recording. */
uint64_t ms_ext_operator_now(void)
{
    PyObject *number = PyObject_CallFunctionObjArgs(ms_ext_torch()->sequence_number, NULL);
    uint64_t now = number != NULL ? PyLong_AsUnsignedLongLong(number) : 0;
    Py_XDECREF(number);
    PyErr_Clear();
    return now;
}

bool ms_ext_is_under_way(PyObject *caller)
{
    PyObject *frame = (PyObject *)PyEval_GetFrame();
    if (caller == NULL || frame == NULL) {
        return true;
    }
    const void *wanted = PyList_Check(caller) ? PyLong_AsVoidPtr(PyList_GetItem(caller, 0)) : caller;
    Py_INCREF(frame);
    while (frame != NULL && frame != Py_None && frame != wanted) {
        PyObject *back = PyObject_GetAttr(frame, ms_ext_torch()->n_f_back);
        Py_DECREF(frame);
        frame = back;
    }
    bool is_under_way = frame == wanted;
    Py_XDECREF(frame);
    PyErr_Clear();
    return is_under_way;
}
