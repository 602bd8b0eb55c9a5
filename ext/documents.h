/*
 * documents.h - the JSON documents that planning reads: parses texts from Python together, and
 * frees the results together. For every room of the extension that takes some of them.
 */
#ifndef MS_EXT_DOCUMENTS_H
#define MS_EXT_DOCUMENTS_H

#include "memscale/plan.h"

/* Empty if all zero. Hardware is large, so it is a pointer. */
typedef struct ms_ext_documents {
    ms_graph *graph;
    ms_hardware *hardware;
    ms_plan *plan;
    ms_config config;
} ms_ext_documents;

/* Parses the texts that are not NULL. Free the documents also after a failure. Needs no interpreter lock. */
int ms_ext_documents_parse(ms_ext_documents *documents, const char *graph, const char *hardware, const char *config,
                           const char *plan, ms_error *err);
void ms_ext_documents_free(ms_ext_documents *documents);

#endif
