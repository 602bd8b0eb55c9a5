/*
 * telemetry.h - facts that a run reports about itself if the user asked for it: classes and buckets, never a
 * size, a name or a path.
 *
 * Every value of an event is one of a fixed list of words (docs/formats/telemetry.schema.json). This file
 * only writes events; it sends nothing. Tests: tests/python/test_telemetry.py.
 */
#ifndef MEMSCALE_TELEMETRY_H
#define MEMSCALE_TELEMETRY_H

#include "memscale/pipeline.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the events. */
#define MS_TELEMETRY_SCHEMA 2

/* The facts for an event; unknown pointers may be NULL. */
typedef struct ms_telemetry_facts {
    const char *event;        /* "wrap_called" or "finish"; anything else is "other" */
    const char *architecture; /* a class of the schema; anything else is "other" */
    const char *outcome;      /* a word of the schema; anything else is "other" */
    uint64_t parameter_count;
    uint64_t measured_peak_bytes; /* UINT64_MAX: not measured */
    const ms_hardware *hardware;
    const ms_config *config;
    const ms_plan *plan;
} ms_telemetry_facts;

/* One line of JSON. Free with ms_free(); NULL when out of memory. */
MS_API char *ms_telemetry_event(const ms_telemetry_facts *facts);

#ifdef __cplusplus
}
#endif

#endif
