#include "local/local.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/json.h"
#include "base/thread.h"
#include "http/shared.h"
#include "local/reports.h"
#include "log/log.h"
#include "store/statements.h"
#include "store/steps.h"

enum { DEPTH_MOST = 16, FILES_PER_COMMIT = 100, READ_BYTES = 4 * 1024 * 1024, NAME_BYTES = 120 };
#define POLL_NS ((uint64_t)1000000000)

static const mss_id team_id = {"t0000000000000000"}, project_id = {"p0000000000000000"},
                    account_id = {"a0000000000000000"};

/* A log, and the run that its last line is of. */
typedef struct log_file {
    char *path;
    uint64_t read_bytes, size;
    int64_t changed_s;
    mss_id run;
    uint64_t sequence, last_step;
    bool is_known_log, is_no_log, is_quiet, has_news;
    bool is_report;
    int64_t report_s; /* the change that was read last */
} log_file;

struct mss_local {
    const char *folder;
    mss_server *server;
    mss_sql *sql;
    ms__thread thread;
    ms__mutex lock;
    ms__cond stopping;
    bool is_stopping;
    MS__ARRAY(log_file) files;
    size_t sorted; /* files before this one are in order of their paths */
};

/* ---- the database ------------------------------------------------------------------ */

static int fill_database(mss_sql *sql, ms_error *err)
{
    int64_t now = mss_now_ms();
    int rc = mss_sql_run(sql, MSS_ACCOUNT_ADD,
                         MSS_WITH(MSS_TEXT(account_id.text), MSS_TEXT("local"), MSS_TEXT("local"), MSS_TEXT(""),
                                  MSS_INT(0), MSS_INT(now)),
                         NULL, err);
    if (rc == MS_OK) {
        rc = mss_sql_run(sql, MSS_TEAM_ADD, MSS_WITH(MSS_TEXT(team_id.text), MSS_TEXT("local"), MSS_INT(now)), NULL,
                         err);
    }
    if (rc == MS_OK) {
        rc = mss_sql_run(sql, MSS_MEMBER_SET,
                         MSS_WITH(MSS_TEXT(team_id.text), MSS_TEXT(account_id.text), MSS_INT(MSS_VIEWER), MSS_INT(now)),
                         NULL, err);
    }
    if (rc == MS_OK) {
        rc = mss_sql_run(sql, MSS_PROJECT_ADD,
                         MSS_WITH(MSS_TEXT(project_id.text), MSS_TEXT(team_id.text), MSS_TEXT("logs"), MSS_INT(now)),
                         NULL, err);
    }
    return rc;
}

int mss_local_prepare(const char *database, mss_id *account, ms_error *err)
{
    mss_sql *sql = NULL;
    int rc = mss_sql_open(database, MSS_SQL_WRITE, &sql, err);
    if (rc == MS_OK) {
        rc = mss_sql_migrate(sql, err);
    }
    if (rc == MS_OK) {
        rc = fill_database(sql, err);
    }
    mss_sql_close(sql);
    if (rc == MS_OK) {
        *account = account_id;
    }
    return rc;
}

/* ---- lines --------------------------------------------------------------------- */

/* Steps of one run that wait to be stored together. */
typedef struct reading {
    mss_local *local;
    log_file *file;
    mss_steps steps;
    bool has_changed;
} reading;

static int64_t time_of(const json_t *line)
{
    struct tm parts = {0};
    const char *text = json_string_value(json_object_get(line, "time"));
    const char *rest = text != NULL ? strptime(text, "%Y-%m-%dT%H:%M:%S", &parts) : NULL;
    return rest == NULL ? mss_now_ms() : (int64_t)timegm(&parts) * 1000;
}

static int store_steps(reading *r, ms_error *err)
{
    log_file *file = r->file;
    if (r->steps.count == 0) {
        return MS_OK;
    }
    int rc = mss_run_append(r->local->sql, file->run.text, file->sequence + 1, &r->steps, err);
    if (rc == MS_OK) {
        file->sequence++;
        r->steps.count = 0;
        r->has_changed = true;
    }
    return rc;
}

/* What the run is called: the end of the file's path below the folder. */
static const char *name_of(const mss_local *local, const log_file *file)
{
    const char *name = file->path + strlen(local->folder);
    name += strspn(name, "/");
    size_t length = strlen(name);
    return length > NAME_BYTES ? name + length - NAME_BYTES : name;
}

static uint64_t number_of(const json_t *object, const char *outer, const char *name)
{
    const json_t *value = json_object_get(json_object_get(object, outer), name);
    return json_is_integer(value) && json_integer_value(value) >= 0 ? (uint64_t)json_integer_value(value) : UINT64_MAX;
}

/* A run of this file, of a plan (NULL: none is known). */
static int add_run(mss_local *local, log_file *file, const char *model, const json_t *plan, int64_t when_ms,
                   ms_error *err)
{
    char *plan_text = json_is_object(plan) ? ms__json_text(plan, true) : NULL;
    uint64_t budget = number_of(plan, "pressure", "allowed_bytes"), peak = number_of(plan, "predicted", "peak_bytes"),
             step_ns = number_of(plan, "predicted", "step_ns");
    mss_hash none = {{0}};
    file->run = mss_id_new('r');
    int rc = mss_sql_run(
        local->sql, MSS_RUN_ADD,
        MSS_WITH(MSS_TEXT(file->run.text), MSS_TEXT(team_id.text), MSS_TEXT(project_id.text), MSS_TEXT(NULL),
                 MSS_TEXT(file->run.text), MSS_HASH(&none), MSS_TEXT(name_of(local, file)),
                 MSS_TEXT(model != NULL && model[0] != '\0' ? model : "unknown"), MSS_TEXT(NULL), MSS_TEXT(NULL),
                 MSS_TEXT(NULL), MSS_TEXT(plan_text), MSS_TEXT(NULL), MSS_U64_OR_NULL(budget), MSS_U64_OR_NULL(peak),
                 MSS_U64_OR_NULL(step_ns), MSS_INT(when_ms), MSS_INT(0)),
        NULL, err);
    ms_free(plan_text);
    return rc;
}

static int begin_run(reading *r, const json_t *line, ms_error *err)
{
    const json_t *plan = json_object_get(line, "plan");
    r->file->sequence = r->file->last_step = 0;
    r->file->is_quiet = false;
    r->has_changed = true;
    return add_run(r->local, r->file, json_string_value(json_object_get(plan, "model")), plan, time_of(line), err);
}

static const char *const columns[MSS_STEP_COLUMNS] = {
#define COLUMN_NAME(id, name, merge) name,
    MSS_STEP_TABLE(COLUMN_NAME)
#undef COLUMN_NAME
};

/* A step that does not follow the last one, or has no number, is left out. */
static int add_step(reading *r, const json_t *line, ms_error *err)
{
    const json_t *told = json_object_get(line, "step");
    const json_t *number = json_object_get(told, columns[MSS_STEP_NUMBER]);
    json_int_t value = json_integer_value(number);
    int rc = mss_id_is(&r->file->run) ? MS_OK : begin_run(r, line, err);
    if (rc != MS_OK || !json_is_integer(number) || value <= (json_int_t)r->file->last_step || value > INT64_MAX / 2) {
        return rc;
    }
    mss_step *step = MS__ARRAY_PUSH(&r->steps);
    if (step == NULL) {
        return ms_fail(err, MS_ENOMEM, "dashboard: out of memory for steps");
    }
    for (int i = 0; i < MSS_STEP_COLUMNS; i++) {
        const json_t *item = json_object_get(told, columns[i]);
        json_int_t found = json_integer_value(item);
        step->value[i] = json_is_integer(item) && found >= 0 && (uint64_t)found <= MSS_STEP_VALUE_MOST ? (uint64_t)found
                                                                                                       : UINT64_MAX;
    }
    r->file->last_step = (uint64_t)value;
    return r->steps.count == MSS_BATCH_STEPS_MOST ? store_steps(r, err) : MS_OK;
}

/* `line`: one with the event "finish"; NULL if nobody has written to the file for long. */
static int end_run(mss_local *local, log_file *file, const json_t *line, ms_error *err)
{
    const char *told = json_string_value(json_object_get(line, "outcome"));
    bool is_known = told != NULL && (strcmp(told, "finished") == 0 || strcmp(told, "failed") == 0);
    const json_t *counters = json_object_get(line, "counters");
    char *text = json_is_object(counters) ? ms__json_text(counters, true) : NULL;
    int64_t when_ms = line != NULL ? time_of(line) : file->changed_s * 1000;
    file->is_quiet = true;
    int rc = mss_sql_run(
        local->sql, MSS_RUN_FINISH,
        MSS_WITH(MSS_TEXT(is_known ? told : "stopped"), MSS_INT(when_ms), MSS_TEXT(text), MSS_TEXT(file->run.text)),
        NULL, err);
    ms_free(text);
    return rc;
}

/* Whether a line is one of a log; anything else below the folder is none of ours. */
static bool is_log_line(const json_t *line)
{
    return json_integer_value(json_object_get(line, "version")) == 1 &&
           json_is_string(json_object_get(line, "event")) && json_is_string(json_object_get(line, "time"));
}

static int take_line(reading *r, const char *text, size_t length, ms_error *err)
{
    json_t *line = json_loadb(text, length, 0, NULL);
    int rc = MS_OK;
    if (!is_log_line(line)) { /* in a log: a line that another process tore */
        r->file->is_no_log = !r->file->is_known_log;
        json_decref(line);
        return MS_OK;
    }
    r->file->is_known_log = true;
    const char *event = json_string_value(json_object_get(line, "event"));
    if (strcmp(event, "plan") == 0) {
        rc = store_steps(r, err);
        if (rc == MS_OK) {
            rc = begin_run(r, line, err);
        }
    } else if (strcmp(event, "step") == 0) {
        rc = add_step(r, line, err);
    } else if (strcmp(event, "finish") == 0 && mss_id_is(&r->file->run) && !r->file->is_quiet) {
        rc = store_steps(r, err);
        if (rc == MS_OK) {
            rc = end_run(r->local, r->file, line, err);
            r->has_changed = true;
        }
    }
    json_decref(line);
    return rc;
}

/* ---- files --------------------------------------------------------------------- */

/* The whole lines in the next bytes of the file; `*taken` is 0 if there is none. */
static int take_lines(reading *r, int descriptor, char *buffer, size_t room, size_t *taken, ms_error *err)
{
    int rc = MS_OK;
    ssize_t got = pread(descriptor, buffer, room, (off_t)r->file->read_bytes);
    *taken = 0;
    while (rc == MS_OK && got > 0 && !r->file->is_no_log) {
        char *end = memchr(buffer + *taken, '\n', (size_t)got - *taken);
        if (end == NULL) {
            break;
        }
        size_t length = (size_t)(end - buffer) - *taken;
        rc = take_line(r, buffer + *taken, length, err);
        *taken += length + 1;
    }
    return rc;
}

static int read_file(mss_local *local, log_file *file, ms_error *err)
{
    reading r = {.local = local, .file = file};
    size_t room = READ_BYTES, taken = 0;
    char *buffer = ms_malloc(room);
    int descriptor = open(file->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK), rc = MS_OK;
    while (buffer != NULL && descriptor >= 0 && rc == MS_OK && file->read_bytes < file->size && !file->is_no_log) {
        rc = take_lines(&r, descriptor, buffer, room, &taken, err);
        file->read_bytes += taken;
        if (taken > 0) {
            continue;
        }
        /* A line that is longer than the buffer, or not yet finished. */
        char *larger = file->size - file->read_bytes > room && room < MSS_LOCAL_LINE_MOST
                           ? ms_realloc_array(buffer, 2 * room, 1)
                           : NULL;
        if (larger == NULL) {
            break;
        }
        buffer = larger;
        room *= 2;
    }
    if (rc == MS_OK && buffer != NULL) {
        rc = store_steps(&r, err);
    }
    if (descriptor >= 0) {
        close(descriptor);
    }
    ms_free(buffer);
    MS__ARRAY_FREE(&r.steps);
    file->has_news = r.has_changed;
    return rc;
}

/* ---- reports ------------------------------------------------------------------- */

static bool is_log_of(const log_file *log, const log_file *report)
{
    size_t stem = strlen(report->path) - strlen("html");
    return strncmp(log->path, report->path, stem) == 0 && strcmp(log->path + stem, "log") == 0;
}

/* The log of the same name; NULL if there is none. */
static log_file *log_of(mss_local *local, const log_file *report)
{
    for (size_t i = 0; i < local->files.count; i++) {
        if (!local->files.items[i].is_no_log && is_log_of(&local->files.items[i], report)) {
            return &local->files.items[i];
        }
    }
    return NULL;
}

static int store_report(mss_local *local, log_file *owner, const mss_report *report, ms_error *err)
{
    mss_hash hash = mss_hash_of(report->page, report->bytes);
    owner->has_news = true;
    return mss_sql_run(local->sql, MSS_ARTIFACT_SET,
                       MSS_WITH(MSS_TEXT(owner->run.text), MSS_TEXT("report"), MSS_HASH(&hash), MSS_INT(report->bytes),
                                MSS_BLOB(report->page, report->bytes), MSS_INT(mss_now_ms())),
                       NULL, err);
}

/* A report without a log is a run of its own, which has finished. */
static int begin_report(mss_local *local, log_file *file, const char *model, ms_error *err)
{
    int64_t when_ms = file->changed_s * 1000;
    if (mss_id_is(&file->run)) {
        return MS_OK;
    }
    int rc = add_run(local, file, model, NULL, when_ms, err);
    return rc == MS_OK
               ? mss_sql_run(local->sql, MSS_RUN_FINISH,
                             MSS_WITH(MSS_TEXT("finished"), MSS_INT(when_ms), MSS_TEXT(NULL), MSS_TEXT(file->run.text)),
                             NULL, err)
               : rc;
}

static int take_report(mss_local *local, log_file *file, ms_error *err)
{
    mss_report report;
    log_file *log = log_of(local, file), *owner = log != NULL && mss_id_is(&log->run) ? log : file;
    if (log != NULL && owner != log && log->read_bytes < log->size) {
        return MS_OK; /* it is read first */
    }
    file->report_s = file->changed_s;
    int rc = mss_report_read(file->path, &report, err);
    if (rc != MS_OK || report.page == NULL) {
        return rc;
    }
    if (owner == file) {
        rc = begin_report(local, file, report.model, err);
    }
    if (rc == MS_OK) {
        rc = store_report(local, owner, &report, err);
    }
    ms_free(report.page);
    return rc;
}

/* ---- the folder --------------------------------------------------------------------- */

/* nftw() has no argument for its caller's own. One dashboard per process reads. */
static mss_local *walked;

static int compare_paths(const void *a, const void *b)
{
    return strcmp(((const log_file *)a)->path, ((const log_file *)b)->path);
}

static int see_file(const char *path, const struct stat *status, int kind, struct FTW *place)
{
    if (kind != FTW_F || !S_ISREG(status->st_mode) || status->st_size == 0 || place->level > DEPTH_MOST) {
        return 0;
    }
    log_file wanted = {.path = (char *)(uintptr_t)path};
    log_file *file = walked->sorted == 0
                         ? NULL
                         : bsearch(&wanted, walked->files.items, walked->sorted, sizeof wanted, compare_paths);
    if (file == NULL) {
        char *copy = ms_strdup(path);
        file = copy != NULL ? MS__ARRAY_PUSH(&walked->files) : NULL;
        if (file == NULL) {
            ms_free(copy);
            return 1;
        }
        file->path = copy;
        file->is_report = mss_report_may_be(path);
        file->is_no_log = file->is_quiet = file->is_report;
    }
    if ((uint64_t)status->st_size < file->read_bytes) { /* begun anew */
        file->read_bytes = 0;
        file->run = (mss_id){""};
    }
    file->size = (uint64_t)status->st_size;
    file->changed_s = status->st_mtime;
    return 0;
}

static int newest_first(const void *a, const void *b)
{
    const log_file *one = *(const log_file *const *)a, *other = *(const log_file *const *)b;
    return (one->changed_s < other->changed_s) - (one->changed_s > other->changed_s);
}

static bool is_stopping(mss_local *local)
{
    ms__mutex_lock(&local->lock);
    bool is = local->is_stopping;
    ms__mutex_unlock(&local->lock);
    return is;
}

/* Whether the file has something to read, or nobody has written to it for so long that its run has stopped. */
static int look_at(mss_local *local, log_file *file, ms_error *err)
{
    int rc = file->is_report ? take_report(local, file, err) : MS_OK;
    if (!file->is_no_log && file->read_bytes < file->size) {
        rc = read_file(local, file, err);
    }
    bool is_old = mss_now_ms() / 1000 - file->changed_s > MSS_LOCAL_QUIET_S;
    return rc == MS_OK && is_old && !file->is_quiet && mss_id_is(&file->run) ? end_run(local, file, NULL, err) : rc;
}

static int look_at_some(mss_local *local, log_file **files, size_t count, ms_error *err)
{
    int rc = mss_sql_transaction(local->sql, MSS_BEGIN, err);
    for (size_t i = 0; rc == MS_OK && i < count; i++) {
        rc = look_at(local, files[i], err);
    }
    if (rc == MS_OK) {
        rc = mss_sql_transaction(local->sql, MSS_COMMIT, err);
    }
    if (rc != MS_OK) {
        mss_sql_rollback(local->sql);
        return rc;
    }
    for (size_t i = 0; i < count; i++) {
        if (files[i]->has_news) { /* without columns: look again */
            mss_server_tell(local->server, &files[i]->run, MSS_LOOK_AGAIN);
            files[i]->has_news = false;
        }
    }
    return MS_OK;
}

static bool needs_a_look(const log_file *file, int64_t now_s)
{
    bool has_more =
        file->is_report ? file->report_s != file->changed_s : !file->is_no_log && file->read_bytes < file->size;
    return has_more || (mss_id_is(&file->run) && !file->is_quiet && now_s - file->changed_s > MSS_LOCAL_QUIET_S);
}

static int look_around(mss_local *local, ms_error *err)
{
    walked = local;
    if (nftw(local->folder, see_file, 32, FTW_PHYS) != 0) {
        mss_log_event(MS_LOG_WARNING, "dashboard: %s can't be read whole: %s", local->folder, strerror(errno));
    }
    qsort(local->files.items, local->files.count, sizeof local->files.items[0], compare_paths);
    local->sorted = local->files.count;
    log_file **due = ms_calloc(local->files.count + 1, sizeof *due);
    if (due == NULL) {
        return ms_fail(err, MS_ENOMEM, "dashboard: out of memory for %zu files", local->files.count);
    }
    size_t count = 0;
    int rc = MS_OK;
    for (size_t i = 0; i < local->files.count; i++) {
        if (needs_a_look(&local->files.items[i], mss_now_ms() / 1000)) {
            due[count++] = &local->files.items[i];
        }
    }
    qsort(due, count, sizeof *due, newest_first);
    for (size_t at = 0; rc == MS_OK && at < count && !is_stopping(local); at += FILES_PER_COMMIT) {
        rc = look_at_some(local, due + at, count - at < FILES_PER_COMMIT ? count - at : FILES_PER_COMMIT, err);
    }
    ms_free(due);
    return rc;
}

static void keep_reading(void *argument)
{
    mss_local *local = argument;
    ms_error err;
    while (!is_stopping(local)) {
        if (look_around(local, &err) != MS_OK) {
            mss_log_event(MS_LOG_ERROR, "dashboard: no more logs are read: %s", err.text);
            return;
        }
        uint64_t next_ns = ms_now_ns() + POLL_NS;
        ms__mutex_lock(&local->lock);
        while (!local->is_stopping && ms__cond_wait_until(&local->stopping, &local->lock, next_ns)) {
        }
        ms__mutex_unlock(&local->lock);
    }
}

int mss_local_start(const char *folder, const char *database, mss_server *server, mss_local **out, ms_error *err)
{
    mss_local *local = ms_calloc(1, sizeof *local);
    if (local == NULL) {
        return ms_fail(err, MS_ENOMEM, "dashboard: out of memory");
    }
    *local = (mss_local){.folder = folder, .server = server};
    ms__mutex_init(&local->lock);
    ms__cond_init(&local->stopping);
    int rc = access(folder, R_OK | X_OK) == 0 ? MS_OK : ms_fail_errno(err, MS_ESYSTEM, errno, "%s", folder);
    if (rc == MS_OK) {
        rc = mss_sql_open(database, MSS_SQL_WRITE, &local->sql, err);
    }
    if (rc == MS_OK) {
        rc = ms__thread_start(&local->thread, "mss-local", keep_reading, local, err);
    }
    if (rc != MS_OK) {
        mss_local_stop(local);
        return rc;
    }
    *out = local;
    return MS_OK;
}

void mss_local_stop(mss_local *local)
{
    if (local == NULL) {
        return;
    }
    ms__mutex_lock(&local->lock);
    local->is_stopping = true;
    ms__cond_broadcast(&local->stopping);
    ms__mutex_unlock(&local->lock);
    ms__thread_join(&local->thread);
    for (size_t i = 0; i < local->files.count; i++) {
        ms_free(local->files.items[i].path);
    }
    MS__ARRAY_FREE(&local->files);
    mss_sql_close(local->sql);
    ms__cond_destroy(&local->stopping);
    ms__mutex_destroy(&local->lock);
    ms_free(local);
}
