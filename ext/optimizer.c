/*
 * The optimizer's update for Python: one call updates the tensors of a parameter group, given as
 * addresses. memscale.optim, the caller, keeps the tensors alive during the call and guarantees
 * their types and sizes. Decides nothing.
 */
#include "optimizer_ext.h"
#include "rooms.h"

/* ---- arguments -------------------------------------------------------------------- */

/* An int as an address; 0 is NULL. */
static int read_address(PyObject *number, void **out)
{
    uint64_t address;
    if (ms_ext_u64(number, "address", &address) != 0) {
        return -1;
    }
    *out = (void *)(uintptr_t)address;
    return 0;
}

enum { TENSOR_FIELDS = 12, TENSOR_NUMBERS = 4 };

int ms_ext_read_adamw_tensor(PyObject *fields, ms_adamw_tensor *tensor)
{
    uint64_t number[TENSOR_NUMBERS];
    void *address[TENSOR_FIELDS - TENSOR_NUMBERS];
    if (!PyTuple_Check(fields) || PyTuple_Size(fields) != TENSOR_FIELDS) {
        PyErr_Format(PyExc_TypeError, "adamw_step: a tensor is a tuple of %d int", TENSOR_FIELDS);
        return -1;
    }
    for (Py_ssize_t i = 0; i < TENSOR_FIELDS; i++) {
        PyObject *item = PyTuple_GetItem(fields, i);
        int rc = i < TENSOR_NUMBERS ? ms_ext_u64(item, "adamw_step", &number[i])
                                    : read_address(item, &address[i - TENSOR_NUMBERS]);
        if (rc != 0) {
            return -1;
        }
    }
    *tensor = (ms_adamw_tensor){
        .weights = (ms_adamw_weights)number[0],
        .moments = (ms_adamw_moments)number[1],
        .count = number[2],
        .step = number[3],
        .parameter = address[0],
        .gradient = address[1],
        .extra = address[2],
        .exp_avg = address[3],
        .exp_avg_sq = address[4],
        .max_exp_avg_sq = address[5],
        .exp_avg_absmax = address[6],
        .exp_avg_sq_absmax = address[7],
    };
    return 0;
}

int ms_ext_read_optimizer_form(PyObject *fields, ms_optimizer_form *form)
{
    unsigned int weights, moments;
    int has_max;
    unsigned long long count;
    if (!PyTuple_Check(fields)) {
        PyErr_SetString(PyExc_TypeError, "optimizer: the form of a state is a tuple");
        return -1;
    }
    if (!PyArg_ParseTuple(fields, "IIpK:form", &weights, &moments, &has_max, &count)) {
        return -1;
    }
    *form = (ms_optimizer_form){.weights = (ms_adamw_weights)weights,
                                .moments = (ms_adamw_moments)moments,
                                .has_max_exp_avg_sq = has_max != 0,
                                .count = count};
    return 0;
}

/* Reads a list of tensors: free them with PyMem_Free. */
static ms_adamw_tensor *read_tensors(PyObject *list, size_t *count)
{
    if (!PyList_Check(list)) {
        PyErr_SetString(PyExc_TypeError, "adamw_step: the tensors come as a list");
        return NULL;
    }
    Py_ssize_t size = PyList_Size(list);
    ms_adamw_tensor *tensors = PyMem_Calloc((size_t)size + 1, sizeof *tensors);
    if (tensors == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < size; i++) {
        if (ms_ext_read_adamw_tensor(PyList_GetItem(list, i), &tensors[i]) != 0) {
            PyMem_Free(tensors);
            return NULL;
        }
    }
    *count = (size_t)size;
    return tensors;
}

/* ---- functions --------------------------------------------------------------------- */

static PyObject *adamw_step(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *list;
    ms_adamw_group group;
    unsigned int threads;
    int maximize;
    if (!PyArg_ParseTuple(args, "OddddddpI:adamw_step", &list, &group.lr, &group.beta1, &group.beta2, &group.eps,
                          &group.weight_decay, &group.grad_scale, &maximize, &threads)) {
        return NULL;
    }
    group.maximize = maximize != 0;
    size_t count;
    ms_adamw_tensor *tensors = read_tensors(list, &count);
    if (tensors == NULL) {
        return NULL;
    }
    ms_error err;
    int rc;
    MS_EXT_UNLOCKED(rc = ms_adamw_step(&group, tensors, count, threads, &err));
    PyMem_Free(tensors);
    return ms_ext_none_or_raise(rc, &err);
}

static PyObject *adamw_moments_bits(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    (void)module;
    uint64_t elements;
    uint32_t bits;
    ms_adamw_moments moments;
    ms_error err;
    if (ms_ext_arity("adamw_moments_bits", given, 2, 2) != 0 || ms_ext_u64(args[0], "elements", &elements) != 0 ||
        ms_ext_u32(args[1], "bits", &bits) != 0 ||
        ms_ext_check(ms_adamw_choose_moments(elements, bits, &moments, &err), &err) != 0) {
        return NULL;
    }
    return PyLong_FromLong(moments == MS_ADAMW_MOMENTS_8BIT ? 8 : 32);
}

typedef struct code_call {
    void *values, *codes, *absmax;
    uint64_t count;
    bool is_signed;
} code_call;

static int read_code_call(PyObject *args, code_call *call)
{
    unsigned long long values, codes, absmax, count;
    int is_signed;
    if (!PyArg_ParseTuple(args, "KKKKp", &values, &codes, &absmax, &count, &is_signed)) {
        return -1;
    }
    call->values = (void *)(uintptr_t)values;
    call->codes = (void *)(uintptr_t)codes;
    call->absmax = (void *)(uintptr_t)absmax;
    call->count = count;
    call->is_signed = is_signed != 0;
    return 0;
}

static PyObject *adamw_quantize(PyObject *module, PyObject *args)
{
    (void)module;
    code_call c;
    ms_error err;
    int rc;
    if (read_code_call(args, &c) != 0) {
        return NULL;
    }
    MS_EXT_UNLOCKED(rc = ms_adamw_quantize(c.values, c.count, c.is_signed, c.codes, c.absmax, &err));
    return ms_ext_none_or_raise(rc, &err);
}

static PyObject *adamw_dequantize(PyObject *module, PyObject *args)
{
    (void)module;
    code_call c;
    ms_error err;
    int rc;
    if (read_code_call(args, &c) != 0) {
        return NULL;
    }
    MS_EXT_UNLOCKED(rc = ms_adamw_dequantize(c.codes, c.absmax, c.count, c.is_signed, c.values, &err));
    return ms_ext_none_or_raise(rc, &err);
}

static PyObject *adamw_map(PyObject *module, PyObject *is_signed)
{
    (void)module;
    int with_sign = PyObject_IsTrue(is_signed);
    PyObject *values = with_sign < 0 ? NULL : PyList_New(0);
    for (int i = 0; values != NULL && i < 256; i++) {
        PyObject *value = PyFloat_FromDouble((double)ms_adamw_map(with_sign != 0)[i]);
        if (value == NULL || PyList_Append(values, value) != 0) {
            Py_CLEAR(values);
        }
        Py_XDECREF(value);
    }
    return values;
}

/* ---- the place of states ----------------------------------------------------------- */

/* The flags as a list; NULL with an error. */
static PyObject *moved_flags(const ms_optimizer_form *forms, Py_ssize_t count, uint64_t moved_bytes)
{
    uint8_t *moved = PyMem_Calloc((size_t)count + 1, 1);
    if (moved == NULL) {
        return PyErr_NoMemory();
    }
    ms_optimizer_choose_moved(forms, (size_t)count, moved_bytes, moved);
    PyObject *flags = PyList_New(count);
    for (Py_ssize_t i = 0; flags != NULL && i < count; i++) {
        PyList_SetItem(flags, i, PyBool_FromLong(moved[i]));
    }
    PyMem_Free(moved);
    return flags;
}

static PyObject *choose_moved(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *list, *flags = NULL;
    unsigned long long moved_bytes;
    if (!PyArg_ParseTuple(args, "O!K:optimizer_choose_moved", &PyList_Type, &list, &moved_bytes)) {
        return NULL;
    }
    Py_ssize_t count = PyList_Size(list), parsed = 0;
    ms_optimizer_form *forms = PyMem_Calloc((size_t)count + 1, sizeof *forms);
    if (forms == NULL) {
        return PyErr_NoMemory();
    }
    while (parsed < count && ms_ext_read_optimizer_form(PyList_GetItem(list, parsed), &forms[parsed]) == 0) {
        parsed++;
    }
    if (parsed == count) {
        flags = moved_flags(forms, count, moved_bytes);
    }
    PyMem_Free(forms);
    return flags;
}

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION(
        "adamw_step", adamw_step, METH_VARARGS,
        "tensors, lr, beta1, beta2, eps, weight_decay, grad_scale, maximize, threads, /",
        "(list[tuple[int, ...]], float, float, float, float, float, float, bool, int) -> None",
        "Updates the tensors once. A tensor is a tuple of int: weights (0 fp32, 1 bf16 with a master, 2 bf16 split), "
        "moments (0 fp32, 1 8-bit), count, step, then addresses (0: none) of parameter, gradient, extra, exp_avg, "
        "exp_avg_sq, max_exp_avg_sq, exp_avg_absmax, exp_avg_sq_absmax."),
    MS_EXT_FUNCTION("adamw_moments_bits", MS_EXT_FAST(adamw_moments_bits), METH_FASTCALL, "elements, bits, /",
                    "(int, int) -> int", "Bits of the moments for a tensor of this size: 8 or 32."),
    MS_EXT_FUNCTION("adamw_quantize", adamw_quantize, METH_VARARGS, "values, codes, absmax, count, is_signed, /",
                    "(int, int, int, int, bool) -> None",
                    "Encodes fp32 values. The first three arguments are addresses; `absmax` has the blocks' scales."),
    MS_EXT_FUNCTION("adamw_dequantize", adamw_dequantize, METH_VARARGS, "values, codes, absmax, count, is_signed, /",
                    "(int, int, int, int, bool) -> None",
                    "Decodes codes to fp32 values; arguments as for adamw_quantize."),
    MS_EXT_FUNCTION("adamw_map", adamw_map, METH_O, "is_signed, /", "(bool) -> list[float]",
                    "The 256 values that codes stand for."),
    MS_EXT_FUNCTION("optimizer_choose_moved", choose_moved, METH_VARARGS, "forms, moved_bytes, /",
                    "(list[tuple[int, int, bool, int]], int) -> list[bool]",
                    "Which states leave the device so that at least moved_bytes (0: all) do. forms: as for "
                    "OptimizerStream.add()."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_optimizer(PyObject *module)
{
    if (PyModule_AddIntConstant(module, "ADAMW_BLOCK", MS_ADAMW_BLOCK) != 0 ||
        PyModule_AddIntConstant(module, "ADAMW_FP32", MS_ADAMW_FP32) != 0 ||
        PyModule_AddIntConstant(module, "ADAMW_BF16_MASTER", MS_ADAMW_BF16_MASTER) != 0 ||
        PyModule_AddIntConstant(module, "ADAMW_BF16_SPLIT", MS_ADAMW_BF16_SPLIT) != 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, methods);
}
