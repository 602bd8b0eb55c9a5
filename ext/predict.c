/* Prediction from a Hugging Face configuration for Python: one call of predict.h. */
#include "common.h"
#include "rooms.h"

#include "memscale/predict.h"

static PyObject *predict_hf_graph(PyObject *module, PyObject *args)
{
    (void)module;
    const char *config;
    unsigned long long batch, seq;
    int half = 0;
    if (!PyArg_ParseTuple(args, "sKK|p:predict_hf_graph", &config, &batch, &seq, &half)) {
        return NULL;
    }
    ms_error err;
    ms_graph *graph = NULL;
    ms_part_traffic none;
    const ms_part part = {.tensor_ranks = 1, .stages = 1, .microbatches = 1, .is_half = half != 0};
    int rc = ms_predict_hf_part(config, batch, seq, &part, &graph, &none, &err);
    if (ms_ext_check(rc, &err) != 0) {
        return NULL;
    }
    PyObject *text = ms_ext_take_text(ms_graph_to_json(graph));
    ms_graph_free(graph);
    return text;
}

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION(
        "predict_hf_graph", predict_hf_graph, METH_VARARGS, "config, batch, seq, half=False, /",
        "(str, int, int, bool) -> str",
        "The graph of a training step of a Hugging Face model with sequences of `seq` tokens. `config` is the text of "
        "its config.json. `half`: in BF16, with AdamW's state in FP32."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_predict(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
