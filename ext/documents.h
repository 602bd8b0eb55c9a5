/*
 * documents.h - the JSON documents that planning reads, as texts from Python: parsed together and
 * freed together. For every room of the extension that takes some of them.
 */
#ifndef MS_EXT_DOCUMENTS_H
#define MS_EXT_DOCUMENTS_H

#include "memscale/plan.h"

/* All zero is empty. Hardware is large, hence a pointer. */
typedef struct ms_ext_documents {
    ms_graph *graph;
    ms_hardware *hardware;
    ms_plan *plan;
    ms_config config;
} ms_ext_documents;

/* Parses the texts that are not NULL; after a failure, free the parsed ones too. May run without the
 * interpreter lock. */
int ms_ext_documents_parse(ms_ext_documents *documents, const char *graph, const char *hardware, const char *config,
                           const char *plan, ms_error *err);
void ms_ext_documents_free(ms_ext_documents *documents);

#endif
