/*
 * Parses and frees the documents that planning reads. Uses no Python.
 */
#include "documents.h"

int ms_ext_documents_parse(ms_ext_documents *documents, const char *graph, const char *hardware, const char *config,
                           const char *plan, ms_error *err)
{
    int rc = graph != NULL ? ms_graph_parse(graph, &documents->graph, err) : MS_OK;
    if (rc == MS_OK && hardware != NULL) {
        documents->hardware = ms_calloc(1, sizeof *documents->hardware);
        rc = documents->hardware == NULL ? ms_fail(err, MS_ENOMEM, "out of memory")
                                         : ms_hardware_parse(hardware, documents->hardware, err);
    }
    if (rc == MS_OK && config != NULL) {
        rc = ms_config_parse(config, &documents->config, err);
    }
    return rc == MS_OK && plan != NULL ? ms_plan_parse(plan, &documents->plan, err) : rc;
}

void ms_ext_documents_free(ms_ext_documents *documents)
{
    ms_graph_free(documents->graph);
    ms_free(documents->hardware);
    ms_plan_free(documents->plan);
}
