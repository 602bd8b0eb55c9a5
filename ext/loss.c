/*
 * The row-wise loss head for Python: takes its rows as addresses, and chooses the size of chunks.
 * memscale.techniques, the caller, keeps the tensors alive.
 */
#include "memscale/loss.h"
#include "common.h"
#include "rooms.h"

static PyObject *loss_chunk_rows(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    (void)module;
    uint64_t tokens, vocabulary, item_bytes;
    uint32_t threads;
    if (ms_ext_arity("loss_chunk_rows", given, 5, 5) != 0 || ms_ext_u64(args[0], "tokens", &tokens) != 0 ||
        ms_ext_u64(args[1], "vocabulary", &vocabulary) != 0 || ms_ext_u64(args[2], "item_bytes", &item_bytes) != 0 ||
        ms_ext_u32(args[3], "threads", &threads) != 0) {
        return NULL;
    }
    int on_device = PyObject_IsTrue(args[4]);
    if (on_device < 0) {
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(on_device ? ms_loss_device_chunk_rows(tokens, vocabulary, item_bytes, threads)
                                                 : ms_loss_chunk_rows(tokens, vocabulary, item_bytes, threads));
}

static PyObject *loss_lanes(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    (void)module;
    uint64_t vocabulary;
    if (ms_ext_arity("loss_lanes", given, 2, 2) != 0) {
        return NULL;
    }
    const char *capability = ms_ext_utf8(args[0], "capability", NULL);
    if (capability == NULL || ms_ext_u64(args[1], "vocabulary", &vocabulary) != 0) {
        return NULL;
    }
    return PyLong_FromUnsignedLong(ms_loss_lanes(capability, vocabulary));
}

/* ---- rows ------------------------------------------------------------------------- */

enum { ROW_NUMBERS = 10 };

/* (logits, rows, vocabulary, classes, largest, log_sum, lanes, threads) and the two addresses that
 * differ between forward and backward, all int. */
static int read_rows(const char *function, PyObject *const *args, Py_ssize_t given, ms_loss_rows *rows,
                     uint64_t *number)
{
    if (ms_ext_arity(function, given, ROW_NUMBERS, ROW_NUMBERS) != 0) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < ROW_NUMBERS; i++) {
        if (ms_ext_u64(args[i], function, &number[i]) != 0) {
            return -1;
        }
    }
    *rows = (ms_loss_rows){
        .logits = (const float *)(uintptr_t)number[0],
        .rows = number[1],
        .vocabulary = number[2],
        .classes = (const int64_t *)(uintptr_t)number[3],
        .largest = (float *)(uintptr_t)number[4],
        .log_sum = (float *)(uintptr_t)number[5],
        .lanes = (uint32_t)number[6],
    };
    return 0;
}

static PyObject *loss_forward(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    (void)module;
    ms_loss_rows rows;
    uint64_t number[ROW_NUMBERS];
    if (read_rows("loss_forward", args, given, &rows, number) != 0) {
        return NULL;
    }
    float *picked = (float *)(uintptr_t)number[8];
    ms_error err;
    int rc;
    MS_EXT_UNLOCKED(rc = ms_loss_forward(&rows, picked, (uint32_t)number[7], &err));
    return ms_ext_none_or_raise(rc, &err);
}

static PyObject *loss_backward(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    (void)module;
    ms_loss_rows rows;
    uint64_t number[ROW_NUMBERS];
    if (read_rows("loss_backward", args, given, &rows, number) != 0) {
        return NULL;
    }
    const float *by_picked = (const float *)(uintptr_t)number[8];
    float *gradient = (float *)(uintptr_t)number[9];
    ms_error err;
    int rc;
    MS_EXT_UNLOCKED(rc = ms_loss_backward(&rows, by_picked, gradient, (uint32_t)number[7], &err));
    return ms_ext_none_or_raise(rc, &err);
}

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION(
        "loss_lanes", MS_EXT_FAST(loss_lanes), METH_FASTCALL, "capability, vocabulary, /", "(str, int) -> int",
        "Lanes of torch's vectors if loss_forward() and loss_backward() give the same bits as torch, else 0."),
    MS_EXT_FUNCTION("loss_forward", MS_EXT_FAST(loss_forward), METH_FASTCALL,
                    "logits, rows, vocabulary, classes, largest, log_sum, lanes, threads, picked, unused, /",
                    "(int, int, int, int, int, int, int, int, int, int) -> None",
                    "Computes the log-softmax of each row's class. Takes addresses of fp32 rows, int64 classes and "
                    "fp32 results per row."),
    MS_EXT_FUNCTION(
        "loss_backward", MS_EXT_FAST(loss_backward), METH_FASTCALL,
        "logits, rows, vocabulary, classes, largest, log_sum, lanes, threads, by_picked, gradient, /",
        "(int, int, int, int, int, int, int, int, int, int) -> None",
        "Computes the gradient of the logits. Arguments as for loss_forward(); `gradient` may be `logits`."),
    MS_EXT_FUNCTION("loss_chunk_rows", MS_EXT_FAST(loss_chunk_rows), METH_FASTCALL,
                    "tokens, vocabulary, item_bytes, threads, on_device, /", "(int, int, int, int, bool) -> int",
                    "The number of rows in a chunk of logits, which are on a GPU or in host memory."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_loss(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
