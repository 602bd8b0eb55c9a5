/*
 * push_file.h - one log on its way to a server: which request comes next, and what an answer means for its runs. The
 * inner half of push.h, which alone uses it; no network, no clock.
 *
 * Nothing is noted on this side. A run's key is a hash of the line that began it, and the server answers the key with
 * how far the run is. So a log can be sent again from its start, by anybody, at any time: only its new steps count.
 * Tests: tests/c/observability/test_push.c, tests/fuzz/fuzz_push.c.
 */
#ifndef MS_OBSERVABILITY_PUSH_FILE_H
#define MS_OBSERVABILITY_PUSH_FILE_H

#include "base/array.h"
#include "observability/push.h"
#include "observability/run_log.h"

enum { MS__RUN_KEY_BYTES = 40, MS__RUN_ID_BYTES = 65 };

typedef enum ms__push_kind { MS__PUSH_NOTHING, MS__PUSH_CREATE, MS__PUSH_APPEND, MS__PUSH_FINISH } ms__push_kind;

/* What follows from an answer. */
typedef enum ms__verdict {
    MS__VERDICT_FINE,  /* go on; a refusal that concerns one run alone is fine too */
    MS__VERDICT_LATER, /* the same request again, after a while */
    MS__VERDICT_NEVER, /* no request will be taken */
} ms__verdict;

typedef struct ms__push_file {
    ms__run_log log;
    char *path;
    const char *name; /* the end of the path */
    bool is_ended;    /* it grows no more: a run without an end has stopped */
    bool is_done;     /* nothing will come of it any more */
    bool is_known;    /* one of its lines was a log's */
    bool is_spool;    /* of a spool: it is removed when all is sent */
    bool is_found;    /* in a folder, not named: nobody is told that it is no log */
    bool is_told;     /* that it can't be read */
    int lock_fd;      /* of a spool's file whose writer has gone; -1: none */
    /* the run that its lines are of */
    bool has_run, is_created, is_refused;
    char *create, key[MS__RUN_KEY_BYTES], id[MS__RUN_ID_BYTES];
    uint64_t begins_bytes; /* its first line behind the one that began it */
    uint64_t last_sequence, last_step, resent_sequence;
    size_t batch_most;
    MS__ARRAY(ms__step) batch;
    char *finish;      /* the body of what ends it */
    bool is_continued; /* its next lines are in another file */
    /* the run that begins when this one is sent */
    char *next_create, next_key[MS__RUN_KEY_BYTES];
    uint64_t next_begins_bytes;
    /* the request under way */
    ms__push_kind asked;
    char *body, target[MS__RUN_ID_BYTES + 64];
} ms__push_file;

/* `path` is copied. MS_ENOMEM. */
MS_NODISCARD int ms__push_file_new(const char *path, ms__push_file **file, ms_error *err);
void ms__push_file_free(ms__push_file *file);

/* Whether the writer of a spool's file has gone: its lock is free. It is then this file's until that is freed. */
bool ms__push_file_take_over(ms__push_file *file);

/* Reads on until something can be sent: then `request` points into the file until the answer. `*has` is false if there
 * is nothing to send now. MS_ENOMEM, or what ms__run_log_next() says of a file that can't be read. */
MS_NODISCARD int ms__push_file_look(ms__push_file *file, const ms__push_options *options, ms__push_request *request,
                                    bool *has, ms_error *err);

/* Takes the answer to the request. `counts` are added to; `news` gets one line if the user should know, else "". */
ms__verdict ms__push_file_answer(ms__push_file *file, const ms__push_answer *answer, ms__push_counts *counts,
                                 char news[MS_ERROR_TEXT_MAX]);

#endif
