/*
 * One log of push_file.h. look() reads on until a request is due; answered() moves the run's state on. A run goes
 * through: begun in the log, created on the server, batches, finish.
 */
#include "observability/push_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>
#include <xxhash.h>

#include "observability/push_body.h"

static int out_of_memory(const ms__push_file *file, ms_error *err)
{
    return ms_fail(err, MS_ENOMEM, "%s: out of memory", file->name);
}

int ms__push_file_new(const char *path, ms__push_file **file, ms_error *err)
{
    ms__push_file *made = ms_calloc(1, sizeof *made);
    char *copy = made != NULL ? ms_strdup(path) : NULL;
    if (copy == NULL) {
        ms_free(made);
        return ms_fail(err, MS_ENOMEM, "push: out of memory for %s", path);
    }
    const char *slash = strrchr(copy, '/');
    made->path = copy;
    made->log.path = copy;
    made->name = slash != NULL ? slash + 1 : copy;
    made->lock_fd = -1;
    *file = made;
    return MS_OK;
}

static void clear_text(char **text)
{
    ms_free(*text);
    *text = NULL;
}

/* The run is over for this side: its next lines, if any, are of another. */
static void leave_run(ms__push_file *file)
{
    clear_text(&file->create);
    clear_text(&file->finish);
    file->has_run = file->is_created = file->is_refused = file->is_continued = false;
    file->batch.count = 0;
    file->last_sequence = file->last_step = file->resent_sequence = 0;
}

void ms__push_file_free(ms__push_file *file)
{
    if (file == NULL) {
        return;
    }
    leave_run(file);
    clear_text(&file->next_create);
    clear_text(&file->body);
    MS__ARRAY_FREE(&file->batch);
    ms__run_log_rest(&file->log);
    if (file->lock_fd >= 0) {
        close(file->lock_fd);
    }
    ms_free(file->path);
    ms_free(file);
}

/* ---- lines ---------------------------------------------------------------------- */

/* Two runs differ in the line that begins them, which has the time and the process; and under another name or project
 * a log is another run, because a server takes a key with one body only. */
static void make_key(const char *line, size_t length, const char *body, char key[MS__RUN_KEY_BYTES])
{
    uint64_t first = XXH3_64bits(line, length), second = XXH3_64bits_withSeed(body, strlen(body), first);
    snprintf(key, MS__RUN_KEY_BYTES, "log-%016" PRIx64 "%016" PRIx64, first, second);
}

/* Remembers the run that begins at this line (`tree` NULL: whose begin is lost), until the one before it is sent. */
static int note_begin(ms__push_file *file, const ms__push_options *options, const json_t *tree, const char *text,
                      size_t length, ms_error *err)
{
    file->next_create = ms__run_begin_text(tree, options, file->is_spool ? NULL : file->name);
    if (file->next_create == NULL) {
        return out_of_memory(file, err);
    }
    const char *own = json_string_value(json_object_get(json_object_get(tree, "run"), "key"));
    bool has_own = own != NULL && strlen(own) < MS__RUN_KEY_BYTES && own[0] != '\0' &&
                   strspn(own, "0123456789abcdef-") == strlen(own);
    if (has_own) {
        strcpy(file->next_key, own);
    } else {
        make_key(text, length, file->next_create, file->next_key);
    }
    file->next_begins_bytes = file->log.next_bytes;
    return MS_OK;
}

static void begin_run(ms__push_file *file)
{
    file->create = file->next_create;
    file->next_create = NULL;
    memcpy(file->key, file->next_key, sizeof file->key);
    file->begins_bytes = file->next_begins_bytes;
    file->has_run = true;
    file->batch_most = MS__BATCH_STEPS_MOST;
}

static int note_end(ms__push_file *file, const json_t *line, ms_error *err)
{
    const char *event = json_string_value(json_object_get(line, "event"));
    if (event != NULL && strcmp(event, "continued") == 0) {
        file->is_continued = true;
        return MS_OK;
    }
    file->finish = ms__run_end_text(line);
    return file->finish != NULL ? MS_OK : out_of_memory(file, err);
}

static bool is_ending(const ms__push_file *file)
{
    return file->finish != NULL || file->is_continued;
}

/* A step that does not follow the last one is left out. */
static int take_step(ms__push_file *file, const ms__step *step, ms_error *err)
{
    uint64_t last =
        file->batch.count > 0 ? file->batch.items[file->batch.count - 1].value[MS__STEP_NUMBER] : file->last_step;
    if (file->is_refused || step->value[MS__STEP_NUMBER] <= last) {
        return MS_OK;
    }
    ms__step *added = MS__ARRAY_PUSH(&file->batch);
    if (added == NULL) {
        return out_of_memory(file, err);
    }
    *added = *step;
    return MS_OK;
}

/* A step without a run: the log's begin is lost. The line is read again once the run has begun. */
static int begin_without_plan(ms__push_file *file, const ms__push_options *options, const char *text, size_t length,
                              uint64_t at_bytes, ms_error *err)
{
    int rc = note_begin(file, options, NULL, text, length, err);
    if (rc == MS_OK) {
        ms__run_log_go_to(&file->log, at_bytes);
        file->next_begins_bytes = at_bytes;
    }
    return rc;
}

static int take_line(ms__push_file *file, const ms__push_options *options, const char *text, size_t length,
                     uint64_t at_bytes, ms_error *err)
{
    ms__line line;
    int rc = ms__line_read(text, length, &line, err);
    if (rc != MS_OK) {
        return rc;
    }
    file->is_known = file->is_known || line.kind != MS__LINE_FOREIGN;
    if (line.kind == MS__LINE_BEGIN) {
        rc = file->has_run && !is_ending(file) ? note_end(file, NULL, err) : MS_OK;
        if (rc == MS_OK) {
            rc = note_begin(file, options, line.tree, text, length, err);
        }
    } else if (line.kind == MS__LINE_END && file->has_run) {
        rc = note_end(file, line.tree, err);
    } else if (line.kind == MS__LINE_STEP) {
        rc = file->has_run ? take_step(file, &line.step, err)
                           : begin_without_plan(file, options, text, length, at_bytes, err);
    }
    json_decref(line.tree);
    return rc;
}

/* Reads one line. A file whose first line is no log's is none of ours. */
static int read_line(ms__push_file *file, const ms__push_options *options, bool *is_at_end, ms_error *err)
{
    const char *text;
    size_t length;
    int rc = ms__run_log_next(&file->log, &text, &length, err);
    *is_at_end = rc == MS_OK && text == NULL;
    if (rc != MS_OK || text == NULL) {
        return rc;
    }
    if (file->log.has_begun_anew) {
        file->log.has_begun_anew = false;
        file->begins_bytes = 0;
    }
    uint64_t at_bytes = file->log.next_bytes - length - 1;
    rc = take_line(file, options, text, length, at_bytes, err);
    if (rc != MS_OK) {
        ms__run_log_go_to(&file->log, at_bytes); /* the line comes again */
    } else if (!file->is_known) {
        ms__run_log_rest(&file->log);
        file->is_done = true;
    }
    return rc;
}

/* ---- requests --------------------------------------------------------------------- */

static void ask(ms__push_file *file, ms__push_kind kind, const char *verb, char *body, ms__push_request *request)
{
    file->asked = kind;
    clear_text(&file->body);
    file->body = body;
    if (kind == MS__PUSH_CREATE) {
        snprintf(file->target, sizeof file->target, "/api/v1/runs");
    } else {
        snprintf(file->target, sizeof file->target, "/api/v1/runs/%s/%s", file->id, verb);
    }
    *request = (ms__push_request){.target = file->target,
                                  .key = kind == MS__PUSH_CREATE ? file->key : NULL,
                                  .body = kind == MS__PUSH_CREATE   ? file->create
                                          : kind == MS__PUSH_FINISH ? file->finish
                                                                    : body};
}

static size_t sent_steps(const ms__push_file *file)
{
    return file->batch.count < file->batch_most ? file->batch.count : file->batch_most;
}

static int ask_append(ms__push_file *file, ms__push_request *request, ms_error *err)
{
    char *body = ms__batch_text(file->batch.items, sent_steps(file), file->last_sequence + 1);
    if (body == NULL) {
        return out_of_memory(file, err);
    }
    ask(file, MS__PUSH_APPEND, "steps", body, request);
    return MS_OK;
}

/* The request that the run's state makes due, if any. */
static int ask_if_due(ms__push_file *file, bool is_at_end, ms__push_request *request, bool *has, ms_error *err)
{
    bool is_batch_whole = file->batch.count >= file->batch_most || is_ending(file) || is_at_end;
    *has = file->has_run && !file->is_refused;
    if (*has && !file->is_created) {
        ask(file, MS__PUSH_CREATE, NULL, NULL, request);
    } else if (*has && file->batch.count > 0 && is_batch_whole) {
        return ask_append(file, request, err);
    } else if (*has && file->batch.count == 0 && file->finish != NULL) {
        ask(file, MS__PUSH_FINISH, "finish", NULL, request);
    } else {
        *has = false;
    }
    return MS_OK;
}

bool ms__push_file_take_over(ms__push_file *file)
{
    int fd = file->is_spool ? open(file->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
    if (fd < 0) {
        return false;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        close(fd);
        return false;
    }
    file->lock_fd = fd;
    file->is_ended = true;
    return true;
}

/* At the end of what there is: true if something is due after all. */
static int handle_end(ms__push_file *file, bool *is_over, ms_error *err)
{
    *is_over = false;
    if (!file->is_ended && ms__push_file_take_over(file)) {
        return MS_OK; /* read on: the writer may have added lines before it went */
    }
    if (file->is_ended && file->has_run && !is_ending(file)) {
        return note_end(file, NULL, err);
    }
    *is_over = true;
    if (file->is_ended) {
        file->is_done = true;
        if (file->is_spool) {
            file->is_spool = unlink(file->path) == 0 || errno == ENOENT; /* else it stays, and is known as done */
        }
    }
    return MS_OK;
}

int ms__push_file_look(ms__push_file *file, const ms__push_options *options, ms__push_request *request, bool *has,
                       ms_error *err)
{
    bool is_at_end = false, is_over = false;
    int rc = MS_OK;
    *has = false;
    while (rc == MS_OK && !file->is_done && !is_over) {
        rc = ask_if_due(file, is_at_end, request, has, err);
        if (rc != MS_OK || *has) {
            return rc;
        }
        if (file->has_run && is_ending(file)) {
            leave_run(file);
        } else if (!file->has_run && file->next_create != NULL) {
            begin_run(file);
        } else if (is_at_end) {
            rc = handle_end(file, &is_over, err);
            is_at_end = file->finish != NULL;
        } else {
            rc = read_line(file, options, &is_at_end, err);
        }
    }
    return rc;
}

/* ---- answers ------------------------------------------------------------------------ */

typedef struct place {
    char id[MS__RUN_ID_BYTES];
    uint64_t last_sequence, last_step;
    bool is_counted;
} place;

static bool is_id(const char *text)
{
    size_t length = strlen(text);
    return length > 0 && length < MS__RUN_ID_BYTES &&
           strspn(text, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-") == length;
}

/* What the server says of a run. False for anything else, such as a page of some gateway. */
static bool read_place(const ms__push_answer *answer, bool has_id, place *found)
{
    json_t *tree = NULL;
    ms__json_at root;
    const char *id = "";
    *found = (place){.is_counted = true};
    if (answer->body == NULL || ms__json_parse(answer->body, answer->length, "answer", &tree, &root, NULL) != MS_OK) {
        return false;
    }
    bool is_whole = ms__json_u64(&root, "last_sequence", 0, MS__STEP_VALUE_MOST, &found->last_sequence) == MS_OK &&
                    ms__json_u64(&root, "last_step", 0, MS__STEP_VALUE_MOST, &found->last_step) == MS_OK;
    if (has_id) {
        is_whole = is_whole && ms__json_string(&root, "id", &id) == MS_OK && is_id(id);
    } else {
        is_whole = is_whole && ms__json_bool(&root, "counted", &found->is_counted) == MS_OK;
    }
    if (is_whole) {
        snprintf(found->id, sizeof found->id, "%s", id);
    }
    json_decref(tree);
    return is_whole;
}

static void drop_steps(ms__push_file *file, uint64_t last_step)
{
    size_t known = 0;
    while (known < file->batch.count && file->batch.items[known].value[MS__STEP_NUMBER] <= last_step) {
        known++;
    }
    file->batch.count -= known;
    if (file->batch.count > 0) {
        memmove(file->batch.items, file->batch.items + known, file->batch.count * sizeof file->batch.items[0]);
    }
}

/* The server lacks batches that it had taken, as after a restored backup: the run is read again from its begin. */
static void read_again(ms__push_file *file)
{
    clear_text(&file->finish);
    clear_text(&file->next_create);
    file->is_continued = false;
    file->batch.count = 0;
    ms__run_log_go_to(&file->log, file->begins_bytes);
}

static ms__verdict take_created(ms__push_file *file, const place *found, ms__push_counts *counts, char *news)
{
    bool is_again = file->resent_sequence != 0;
    counts->runs += !is_again;
    memcpy(file->id, found->id, sizeof file->id);
    file->is_created = true;
    file->last_sequence = found->last_sequence;
    file->last_step = found->last_step;
    if (is_again && found->last_sequence + 1 < file->resent_sequence) {
        read_again(file);
    } else if (is_again && found->last_sequence + 1 == file->resent_sequence) {
        snprintf(news, MS_ERROR_TEXT_MAX, "%s: the run has ended on the server; its later steps are left out",
                 file->name);
        file->is_refused = true;
        file->batch.count = 0;
    } else {
        drop_steps(file, found->last_step);
    }
    file->resent_sequence = 0;
    return MS__VERDICT_FINE;
}

static ms__verdict take_appended(ms__push_file *file, const place *found, ms__push_counts *counts)
{
    size_t sent = sent_steps(file), before = file->batch.count;
    uint64_t sequence = file->last_sequence;
    counts->steps += found->is_counted ? sent : 0;
    file->last_sequence = found->last_sequence;
    file->last_step = found->last_step;
    drop_steps(file, found->last_step);
    bool has_moved = file->batch.count < before || file->last_sequence > sequence;
    return has_moved ? MS__VERDICT_FINE : MS__VERDICT_LATER;
}

static ms__verdict take_success(ms__push_file *file, const ms__push_answer *answer, ms__push_counts *counts, char *news)
{
    place found;
    if (file->asked == MS__PUSH_FINISH) {
        leave_run(file);
        return MS__VERDICT_FINE;
    }
    if (!read_place(answer, file->asked == MS__PUSH_CREATE, &found)) {
        snprintf(news, MS_ERROR_TEXT_MAX, "%s", "the answer is not a memscale-server's");
        return MS__VERDICT_LATER;
    }
    return file->asked == MS__PUSH_CREATE ? take_created(file, &found, counts, news)
                                          : take_appended(file, &found, counts);
}

/* What a problem document says, without bytes that a terminal could act on. */
static void read_detail(const ms__push_answer *answer, char detail[200])
{
    json_t *tree = NULL;
    ms__json_at root;
    const char *text = "";
    detail[0] = '\0';
    if (answer->body != NULL && ms__json_parse(answer->body, answer->length, "problem", &tree, &root, NULL) == MS_OK &&
        ms__json_string(&root, "detail", &text) == MS_OK) {
        size_t length = 0;
        for (; text[length] != '\0' && length < 199; length++) {
            detail[length] = text[length] >= ' ' && text[length] <= '~' ? text[length] : '?';
        }
        detail[length] = '\0';
    }
    json_decref(tree);
}

static ms__verdict refuse_run(ms__push_file *file, const ms__push_answer *answer, ms__push_counts *counts, char *news)
{
    char detail[200];
    read_detail(answer, detail);
    snprintf(news, MS_ERROR_TEXT_MAX, "%s: the server refused this run with status %d%s%s", file->name, answer->status,
             detail[0] != '\0' ? ": " : "", detail);
    counts->refused_runs++;
    file->is_refused = true;
    file->batch.count = 0;
    return MS__VERDICT_FINE;
}

/* 413: less at once, if there is less. */
static bool make_smaller(ms__push_file *file)
{
    if (file->asked == MS__PUSH_APPEND && sent_steps(file) > 1) {
        file->batch_most = sent_steps(file) / 2;
        return true;
    }
    char *smaller = file->asked == MS__PUSH_CREATE ? ms__run_begin_smaller(file->create) : NULL;
    if (smaller == NULL) {
        return false;
    }
    ms_free(file->create);
    file->create = smaller;
    return true;
}

static ms__verdict take_refusal(ms__push_file *file, const ms__push_answer *answer, ms__push_counts *counts, char *news)
{
    if (file->asked == MS__PUSH_FINISH && (answer->status == 409 || answer->status == 404)) {
        leave_run(file); /* somebody has ended or deleted it */
        return MS__VERDICT_FINE;
    }
    if (file->asked == MS__PUSH_APPEND && answer->status == 409) {
        file->is_created = false; /* a gap, or the run has ended: the server tells when it is asked how far it is */
        file->resent_sequence = file->last_sequence + 1;
        return MS__VERDICT_FINE;
    }
    if (answer->status == 413 && make_smaller(file)) {
        return MS__VERDICT_FINE;
    }
    return refuse_run(file, answer, counts, news);
}

static const char *why_never(int status, ms__push_kind asked)
{
    if (status == 401) {
        return "the server does not know the token, or it was revoked";
    }
    if (status == 403) {
        return "the token may not write runs: it needs the scope runs:write";
    }
    if (status >= 300 && status < 400) {
        return "the server sends us elsewhere; name its final address, as the token is sent nowhere else";
    }
    bool is_wrong_place = status == 421 || ((status == 404 || status == 405) && asked == MS__PUSH_CREATE);
    return is_wrong_place ? "there is no memscale-server at this address" : NULL;
}

static ms__verdict judge(ms__push_file *file, const ms__push_answer *answer, ms__push_counts *counts, char *news)
{
    int status = answer->status;
    const char *never = why_never(status, file->asked);
    if (never != NULL) {
        snprintf(news, MS_ERROR_TEXT_MAX, "%s (status %d)", never, status);
        return MS__VERDICT_NEVER;
    }
    if (status >= 200 && status < 300) {
        return take_success(file, answer, counts, news);
    }
    if (status < 400 || status >= 500 || status == 408 || status == 429) {
        return MS__VERDICT_LATER;
    }
    return take_refusal(file, answer, counts, news);
}

ms__verdict ms__push_file_answer(ms__push_file *file, const ms__push_answer *answer, ms__push_counts *counts,
                                 char news[MS_ERROR_TEXT_MAX])
{
    news[0] = '\0';
    ms__verdict verdict = judge(file, answer, counts, news);
    file->asked = MS__PUSH_NOTHING;
    clear_text(&file->body);
    return verdict;
}
