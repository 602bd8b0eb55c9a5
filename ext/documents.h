/*
 * documents.h - the JSON documents that planning reads, taken from Python as texts: parsed
 * together and freed together. For every room of the extension that is given some of them.
 */
#ifndef MS_EXT_DOCUMENTS_H
#define MS_EXT_DOCUMENTS_H

#include "memscale/plan.h"

/* All zero holds nothing. Hardware is large, hence not inside. */
typedef struct ms_ext_documents {
    ms_graph *graph;
    ms_hardware *hardware;
    ms_plan *plan;
    ms_config config;
} ms_ext_documents;

/* Parses the texts that are not NULL; on failure too, what was parsed is to be freed. May
 * run without the interpreter lock. */
int ms_ext_documents_parse(ms_ext_documents *documents, const char *graph, const char *hardware, const char *config,
                           const char *plan, ms_error *err);
void ms_ext_documents_free(ms_ext_documents *documents);

#endif
