/*
 * The row-wise loss head for Python: the size of its chunks. Used by
 * memscale.techniques; decides nothing.
 */
#include "common.h"
#include "memscale/loss.h"
#include "rooms.h"

static PyObject *loss_chunk_rows(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    (void)module;
    uint64_t tokens, vocabulary, item_bytes;
    uint32_t threads;
    if (ms_ext_arity("loss_chunk_rows", given, 4, 4) != 0 ||
        ms_ext_u64(args[0], "tokens", &tokens) != 0 ||
        ms_ext_u64(args[1], "vocabulary", &vocabulary) != 0 ||
        ms_ext_u64(args[2], "item_bytes", &item_bytes) != 0 ||
        ms_ext_u32(args[3], "threads", &threads) != 0) {
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(
        ms_loss_chunk_rows(tokens, vocabulary, item_bytes, threads));
}

static PyMethodDef methods[] = {
    {"loss_chunk_rows", MS_EXT_FAST(loss_chunk_rows), METH_FASTCALL,
     "loss_chunk_rows(tokens, vocabulary, item_bytes, threads) -> int: rows of logits that are "
     "turned into loss or gradient at a time."},
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_loss(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
