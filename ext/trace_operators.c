/*
 * Operators for the tracer: converts Python's tuples to operands and to the storages that an
 * operator read, made or wrote. Called once or twice for every operator of a traced step.
 */
#include "base/units.h"
#include "rooms.h"
#include "trace_ext.h"

/* Reads an operand from (shape, bytes) or (shape, bytes, elements): 1 for bool, 2 for BF16, 3 for FP16, else 0. If there are more than eight dimensions, the first
 * ones are multiplied together; no operator in the tables has so many. */
static int read_operand(PyObject *tuple, ms_operand *operand)
{
    Py_ssize_t count = PyTuple_Check(tuple) ? PyTuple_Size(tuple) : 0;
    PyObject *shape = count == 2 || count == 3 ? PyTuple_GetItem(tuple, 0) : NULL;
    if (shape == NULL || !PyTuple_Check(shape)) {
        PyErr_SetString(PyExc_TypeError, "op: an operand is a tuple (shape, bytes[, elements])");
        return -1;
    }
    if (ms_ext_u64(PyTuple_GetItem(tuple, 1), "bytes", &operand->bytes) != 0) {
        return -1;
    }
    long elements = count == 3 ? PyLong_AsLong(PyTuple_GetItem(tuple, 2)) : 0;
    if (elements == -1 && PyErr_Occurred()) {
        return -1;
    }
    operand->are_truths = elements == 1;
    operand->precision = elements == 2 ? MS_PRECISION_BF16 : elements == 3 ? MS_PRECISION_FP16 : MS_PRECISION_AS_IS;
    Py_ssize_t rank = PyTuple_Size(shape);
    const Py_ssize_t most = (Py_ssize_t)(sizeof operand->size / sizeof operand->size[0]);
    Py_ssize_t folded = rank > most ? rank - most : 0;
    operand->rank = (uint32_t)(rank - folded);
    operand->size[0] = 1;
    for (Py_ssize_t i = 0; i < rank; i++) {
        uint64_t size;
        if (ms_ext_u64(PyTuple_GetItem(shape, i), "shape", &size) != 0) {
            return -1;
        }
        if (i <= folded) {
            operand->size[0] = ms__mul_sat(operand->size[0], size);
        } else {
            operand->size[i - folded] = size;
        }
    }
    return 0;
}

enum { OPERANDS_ON_STACK = 16 };

/* Reads a tuple of operands. `*operands` becomes `room`, or for longer tuples new memory: free it with PyMem_Free. */
static int read_operands(PyObject *tuples, ms_operand *room, ms_operand **operands, size_t *count)
{
    if (!PyTuple_Check(tuples)) {
        PyErr_SetString(PyExc_TypeError, "op: operands come as a tuple of tuples (shape, bytes[, elements])");
        return -1;
    }
    size_t items = (size_t)PyTuple_Size(tuples);
    ms_operand *read = room;
    if (items > OPERANDS_ON_STACK) {
        read = PyMem_Malloc(items * sizeof *read);
        if (read == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    for (size_t i = 0; i < items; i++) {
        if (read_operand(PyTuple_GetItem(tuples, (Py_ssize_t)i), &read[i]) != 0) {
            if (read != room) {
                PyMem_Free(read);
            }
            return -1;
        }
    }
    *operands = read;
    *count = items;
    return 0;
}

PyObject *ms_ext_trace_op(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    ms_operand input_room[OPERANDS_ON_STACK];
    ms_operand output_room[OPERANDS_ON_STACK];
    ms_operand *inputs = input_room;
    ms_operand *outputs = output_room;
    size_t input_count;
    size_t output_count;
    PyObject *result = NULL;
    if (ms_ext_arity("op", count, 3, 4) != 0) {
        return NULL;
    }
    const char *name = ms_ext_utf8(args[0], "op", NULL);
    if (name == NULL || read_operands(args[1], input_room, &inputs, &input_count) != 0 ||
        read_operands(args[2], output_room, &outputs, &output_count) != 0) {
        goto cleanup;
    }
    bool takes_workspace = count > 3 && args[3] != Py_None;
    uint32_t copied = 0;
    if (takes_workspace && ms_ext_u32(args[3], "copied", &copied) != 0) {
        goto cleanup;
    }
    ms_error err;
    int rc = ms_trace_op(trace_of(self), name, inputs, input_count, outputs, output_count, &err);
    if (rc == MS_OK && takes_workspace) {
        rc = ms_trace_workspace(trace_of(self), name, inputs, input_count, outputs, output_count, copied, &err);
    }
    result = ms_ext_none_or_raise(rc, &err);
cleanup:
    if (inputs != input_room) {
        PyMem_Free(inputs);
    }
    if (outputs != output_room) {
        PyMem_Free(outputs);
    }
    return result;
}

PyObject *ms_ext_trace_moves(PyObject *self, PyObject *bytes)
{
    return ms_ext_trace_tell_one(self, bytes, "bytes", ms_trace_moves);
}

/* Reads a tuple of storage keys into new memory: free it with PyMem_Free. NULL with an exception. */
static uint64_t *read_keys(PyObject *keys, size_t *count)
{
    if (!PyTuple_Check(keys)) {
        PyErr_SetString(PyExc_TypeError, "made: storages come as tuples of keys");
        return NULL;
    }
    *count = (size_t)PyTuple_Size(keys);
    uint64_t *read = PyMem_Malloc((*count > 0 ? *count : 1) * sizeof *read);
    if (read == NULL) {
        PyErr_NoMemory();
    }
    for (size_t i = 0; read != NULL && i < *count; i++) {
        if (ms_ext_u64(PyTuple_GetItem(keys, (Py_ssize_t)i), "made", &read[i]) != 0) {
            PyMem_Free(read);
            return NULL;
        }
    }
    return read;
}

PyObject *ms_ext_trace_made(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    size_t input_count = 0, output_count = 0;
    if (ms_ext_arity("made", count, 3, 3) != 0) {
        return NULL;
    }
    PyObject *result = NULL;
    int runs_again = PyObject_IsTrue(args[2]);
    if (runs_again < 0) {
        return NULL;
    }
    uint64_t *inputs = read_keys(args[0], &input_count);
    uint64_t *outputs = inputs != NULL ? read_keys(args[1], &output_count) : NULL;
    if (outputs != NULL) {
        ms_error err;
        int rc = ms_trace_made(trace_of(self), inputs, input_count, outputs, output_count, runs_again != 0, &err);
        result = ms_ext_none_or_raise(rc, &err);
    }
    PyMem_Free(inputs);
    PyMem_Free(outputs);
    return result;
}

PyObject *ms_ext_trace_input(PyObject *self, PyObject *key)
{
    uint64_t storage;
    uint32_t place;
    if (ms_ext_u64(key, "input", &storage) != 0) {
        return NULL;
    }
    ms_error err;
    if (ms_ext_check(ms_trace_input(trace_of(self), storage, &place, &err), &err) != 0) {
        return NULL;
    }
    return PyLong_FromLong(place == MS_TRACE_NO_PLACE ? -1 : (long)place);
}

PyObject *ms_ext_trace_wrote(PyObject *self, PyObject *key)
{
    return ms_ext_trace_tell_one(self, key, "wrote", ms_trace_wrote);
}

static PyObject *operator_is_maker(PyObject *module, PyObject *args)
{
    (void)module;
    const char *name;
    int is_pointwise;
    if (!PyArg_ParseTuple(args, "sp:operator_is_maker", &name, &is_pointwise)) {
        return NULL;
    }
    return PyBool_FromLong(ms_operator_is_maker(name, is_pointwise != 0));
}

static PyObject *operator_row_kind(PyObject *module, PyObject *args)
{
    static const char *const names[] = {
        [MS_ROWS_MIX] = "mix", [MS_ROWS_EACH] = "each", [MS_ROWS_PRODUCT] = "product", [MS_ROWS_SEEN] = "seen"};
    (void)module;
    const char *name;
    int is_pointwise;
    if (!PyArg_ParseTuple(args, "sp:operator_row_kind", &name, &is_pointwise)) {
        return NULL;
    }
    return PyUnicode_FromString(names[ms_operator_row_kind(name, is_pointwise != 0)]);
}

static PyObject *takes_workspace(PyObject *module, PyObject *name)
{
    (void)module;
    const char *text = ms_ext_utf8(name, "name", NULL);
    return text != NULL ? PyBool_FromLong(ms_operator_takes_workspace(text)) : NULL;
}

static PyObject *converts(PyObject *module, PyObject *name)
{
    (void)module;
    const char *text = ms_ext_utf8(name, "name", NULL);
    return text != NULL ? PyBool_FromLong(ms_operator_converts(text)) : NULL;
}

static PyObject *workspace_bytes(PyObject *module, PyObject *args)
{
    (void)module;
    ms_operand input_room[OPERANDS_ON_STACK], output_room[OPERANDS_ON_STACK];
    ms_operand *inputs = input_room, *outputs = output_room;
    size_t input_count, output_count;
    PyObject *input_tuple, *output_tuple, *result = NULL;
    const char *name;
    unsigned copied;
    if (!PyArg_ParseTuple(args, "sOOI:workspace_bytes", &name, &input_tuple, &output_tuple, &copied)) {
        return NULL;
    }
    if (read_operands(input_tuple, input_room, &inputs, &input_count) == 0 &&
        read_operands(output_tuple, output_room, &outputs, &output_count) == 0) {
        result =
            PyLong_FromUnsignedLongLong(ms_workspace_bytes(name, inputs, input_count, outputs, output_count, copied));
    }
    if (inputs != input_room) {
        PyMem_Free(inputs);
    }
    if (outputs != output_room) {
        PyMem_Free(outputs);
    }
    return result;
}

static PyMethodDef functions[] = {
    MS_EXT_FUNCTION("operator_converts", converts, METH_O, "name, /", "(str) -> bool",
                    "Whether an operator of this name first writes operands of several types in one type."),
    MS_EXT_FUNCTION("operator_takes_workspace", takes_workspace, METH_O, "name, /", "(str) -> bool",
                    "Whether an operator of that name may take memory beside operands and results on a CPU."),
    MS_EXT_FUNCTION("workspace_bytes", workspace_bytes, METH_VARARGS, "name, inputs, outputs, copied, /",
                    "(str, tuple[Any, ...], tuple[Any, ...], int) -> int",
                    "The bound of what an operator takes beside operands and results; operands and `copied` as in "
                    "Trace.op()."),
    MS_EXT_FUNCTION("operator_row_kind", operator_row_kind, METH_VARARGS, "name, is_pointwise, /", "(str, bool) -> str",
                    "How the operator treats rows: mix, each, product or seen."),
    MS_EXT_FUNCTION("operator_is_maker", operator_is_maker, METH_VARARGS, "name, is_pointwise, /",
                    "(str, bool) -> bool", "Whether the operator can run again on its own, as far as its name says."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_trace_operators(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
