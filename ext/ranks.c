/*
 * Agreement among ranks for Python: takes a list of documents and returns one pair. Used by
 * memscale.session.ranks.
 */
#include "common.h"
#include "documents.h"
#include "rooms.h"

#include "memscale/cluster.h"

static int parse_rank(PyObject *pair, ms_ext_documents *rank, ms_error *err)
{
    const char *hardware, *config;
    if (!PyArg_ParseTuple(pair, "ss:ranks_agree", &hardware, &config)) {
        return -1;
    }
    return ms_ext_check(ms_ext_documents_parse(rank, NULL, hardware, config, NULL, err), err);
}

static PyObject *agreed(const ms_ext_documents *ranks, uint32_t count, uint32_t local_count)
{
    const ms_hardware **hardware = ms_calloc(count, sizeof *hardware);
    const ms_config **config = ms_calloc(count, sizeof *config);
    ms_hardware *agreed_hardware = ms_malloc(sizeof *agreed_hardware);
    ms_config agreed_config;
    ms_error err;
    PyObject *answer = NULL;
    if (hardware == NULL || config == NULL || agreed_hardware == NULL) {
        PyErr_NoMemory();
        goto cleanup;
    }
    for (uint32_t i = 0; i < count; i++) {
        hardware[i] = ranks[i].hardware;
        config[i] = &ranks[i].config;
    }
    int rc = ms_pipeline_agree(hardware, config, count, local_count, agreed_hardware, &agreed_config, &err);
    if (ms_ext_check(rc, &err) == 0) {
        answer = Py_BuildValue("(NN)", ms_ext_take_text(ms_hardware_to_json(agreed_hardware)),
                               ms_ext_take_text(ms_config_to_json(&agreed_config)));
    }
cleanup:
    ms_free(hardware);
    ms_free(config);
    ms_free(agreed_hardware);
    return answer;
}

static PyObject *ranks_agree(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *list;
    unsigned int local_count;
    if (!PyArg_ParseTuple(args, "O!I:ranks_agree", &PyList_Type, &list, &local_count)) {
        return NULL;
    }
    Py_ssize_t count = PyList_Size(list);
    if (count < 1 || count > 1 << 20) {
        return PyErr_Format(PyExc_ValueError, "ranks_agree: %zd ranks", count);
    }
    ms_ext_documents *ranks = ms_calloc((size_t)count, sizeof *ranks);
    if (ranks == NULL) {
        return PyErr_NoMemory();
    }
    ms_error err;
    bool parsed = true;
    for (Py_ssize_t i = 0; parsed && i < count; i++) {
        PyObject *pair = PyList_GetItem(list, i);
        parsed = pair != NULL && PyTuple_Check(pair) && parse_rank(pair, &ranks[i], &err) == 0;
    }
    PyObject *answer = parsed ? agreed(ranks, (uint32_t)count, local_count) : NULL;
    if (answer == NULL && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_TypeError, "ranks_agree: a list of pairs of documents is wanted");
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        ms_ext_documents_free(&ranks[i]);
    }
    ms_free(ranks);
    return answer;
}

static PyObject *config_in_parts(PyObject *module, PyObject *args)
{
    (void)module;
    const char *text;
    ms_config config;
    ms_error err;
    if (!PyArg_ParseTuple(args, "s:config_in_parts", &text)) {
        return NULL;
    }
    if (ms_ext_check(ms_config_parse(text, &config, &err), &err) != 0) {
        return NULL;
    }
    ms_pipeline_in_parts(&config);
    return ms_ext_take_text(ms_config_to_json(&config));
}

static PyObject *graph_shard(PyObject *module, PyObject *args)
{
    (void)module;
    const char *graph, *hardware;
    ms_sharding sharding;
    unsigned int copies;
    int mixed, stays_gathered, reduces_once;
    unsigned long long held_bytes;
    if (!PyArg_ParseTuple(args, "ssI(ppp)K:graph_shard", &graph, &hardware, &copies, &mixed, &stays_gathered,
                          &reduces_once, &held_bytes)) {
        return NULL;
    }
    sharding = (ms_sharding){.copies = copies,
                             .mixed = mixed != 0,
                             .stays_gathered = stays_gathered != 0,
                             .reduces_once = reduces_once != 0};
    uint64_t gathered_bytes = held_bytes;
    ms_ext_documents documents = {0};
    ms_error err;
    PyObject *answer = NULL;
    if (ms_ext_check(ms_ext_documents_parse(&documents, graph, hardware, NULL, NULL, &err), &err) == 0 &&
        ms_ext_check(ms_cluster_shard(&sharding, documents.graph, documents.hardware, &gathered_bytes, &err), &err) ==
            0) {
        answer = Py_BuildValue("(NNK)", ms_ext_take_text(ms_graph_to_json(documents.graph)),
                               ms_ext_take_text(ms_hardware_to_json(documents.hardware)),
                               (unsigned long long)gathered_bytes);
    }
    ms_ext_documents_free(&documents);
    return answer;
}

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION("ranks_agree", ranks_agree, METH_VARARGS, "documents, local_ranks, /",
                    "(list[tuple[str, str]], int) -> tuple[str, str]",
                    "Combines the hardware and config of all ranks, rank 0's first, into one pair for a common plan."),
    MS_EXT_FUNCTION("config_in_parts", config_in_parts, METH_VARARGS, "config, /", "(str) -> str",
                    "The config restricted to techniques that work with layers that are divided among ranks."),
    MS_EXT_FUNCTION("graph_shard", graph_shard, METH_VARARGS, "graph, hardware, copies, how, held_bytes, /",
                    "(str, str, int, tuple[bool, bool, bool], int) -> tuple[str, str, int]",
                    "Graph and hardware of one rank of those that FSDP divides a model among, and the bytes that it "
                    "gathers; `held_bytes`: those that the hardware counts already."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_ranks(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
