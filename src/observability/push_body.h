/*
 * push_body.h - what is said of a run when it begins and ends, made from lines of its log. Everything that leaves
 * the machine about a run, but for the numbers of its steps, is put together here.
 * Tests: tests/c/observability/test_push.c.
 */
#ifndef MS_OBSERVABILITY_PUSH_BODY_H
#define MS_OBSERVABILITY_PUSH_BODY_H

#include "base/json.h"
#include "observability/push.h"

/* The body that begins a run: from the line that began it ("plan"), and in a spool from its member "run", which has
 * project, name, model, machine and versions, and its documents "graph", "hardware" and "config". No document has a path or a
 * value of the forward's arguments. `line` NULL: the log's begin is lost. `name` is used if nothing else names the
 * run. To be freed with ms_free(); NULL when out of memory. */
char *ms__run_begin_text(const json_t *line, const ms__push_options *options, const char *name);

/* The body that ends a run: from its line "finish", which a spool has; NULL: it has stopped. NULL when out of memory. */
char *ms__run_end_text(const json_t *line);

/* The same body without its largest document, for a server that finds it too long. NULL if it has none, or when out of
 * memory. */
char *ms__run_begin_smaller(const char *begin_text);

#endif
