/* The logs of a push in turn, and the pauses between requests that fail. */
#include "observability/push.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/units.h"
#include "observability/push_file.h"

#define NS_PER_S ((uint64_t)1000000000)
enum { FIRST_PAUSE_S = 1, PAUSE_MOST_S = 300, RETRY_AFTER_MOST_S = 3600, NEWS_MOST = 64 };

struct ms__push {
    ms__push_options options;
    char *project, *name;
    MS__ARRAY(ms__push_file *) files;
    size_t at; /* the file that is looked at first */
    ms__push_file *asked;
    uint64_t failures, wait_until_ns, silent_since_ns; /* 0: the last answer was fine */
    bool is_stopped;
    char reason[MS_ERROR_TEXT_MAX], last_news[MS_ERROR_TEXT_MAX], last_failure[64];
    MS__ARRAY(char *) news;
    ms__push_counts counts;
};

static int copy_text(const char *text, char **copy, ms_error *err)
{
    *copy = text != NULL ? ms_strdup(text) : NULL;
    return text == NULL || *copy != NULL ? MS_OK : ms_fail(err, MS_ENOMEM, "push: out of memory");
}

int ms__push_new(const ms__push_options *options, ms__push **push, ms_error *err)
{
    ms__push *made = ms_calloc(1, sizeof *made);
    if (made == NULL) {
        return ms_fail(err, MS_ENOMEM, "push: out of memory");
    }
    int rc = copy_text(options->project, &made->project, err);
    if (rc == MS_OK) {
        rc = copy_text(options->name, &made->name, err);
    }
    if (rc != MS_OK) {
        ms__push_free(made);
        return rc;
    }
    made->options = *options;
    made->options.project = made->project;
    made->options.name = made->name;
    *push = made;
    return MS_OK;
}

void ms__push_free(ms__push *push)
{
    if (push == NULL) {
        return;
    }
    for (size_t i = 0; i < push->files.count; i++) {
        ms__push_file_free(push->files.items[i]);
    }
    for (size_t i = 0; i < push->news.count; i++) {
        ms_free(push->news.items[i]);
    }
    MS__ARRAY_FREE(&push->files);
    MS__ARRAY_FREE(&push->news);
    ms_free(push->project);
    ms_free(push->name);
    ms_free(push);
}

/* ---- news ----------------------------------------------------------------------- */

/* The same line twice in a row is told once. A line without memory, or one of too many, is lost. */
static void tell(ms__push *push, const char *line)
{
    if (line[0] == '\0' || push->news.count >= NEWS_MOST || strcmp(line, push->last_news) == 0) {
        return;
    }
    char *copy = ms_strdup(line);
    char **added = copy != NULL ? MS__ARRAY_PUSH(&push->news) : NULL;
    if (added == NULL) {
        ms_free(copy);
        return;
    }
    *added = copy;
    snprintf(push->last_news, sizeof push->last_news, "%s", line);
}

char *ms__push_news(ms__push *push)
{
    if (push->news.count == 0) {
        return NULL;
    }
    char *first = push->news.items[0];
    push->news.count--;
    memmove(push->news.items, push->news.items + 1, push->news.count * sizeof push->news.items[0]);
    return first;
}

ms__push_counts ms__push_count(const ms__push *push)
{
    return push->counts;
}

static void stop(ms__push *push, const char *reason)
{
    push->is_stopped = true;
    snprintf(push->reason, sizeof push->reason, "%s", reason);
}

/* ---- files ------------------------------------------------------------------------ */

static ms__push_file *find_file(const ms__push *push, const char *path)
{
    for (size_t i = 0; i < push->files.count; i++) {
        if (strcmp(push->files.items[i]->path, path) == 0) {
            return push->files.items[i];
        }
    }
    return NULL;
}

static ms__push_file *find_file_in(const ms__push *push, const char *folder, const char *name)
{
    char path[4096];
    return (size_t)snprintf(path, sizeof path, "%s/%s", folder, name) < sizeof path ? find_file(push, path) : NULL;
}

static int add_file(ms__push *push, const char *path, ms__push_file **file, ms_error *err)
{
    int rc = ms__push_file_new(path, file, err);
    if (rc != MS_OK) {
        return rc;
    }
    ms__push_file **place = MS__ARRAY_PUSH(&push->files);
    if (place == NULL) {
        ms__push_file_free(*file);
        return ms_fail(err, MS_ENOMEM, "push: out of memory for %s", path);
    }
    *place = *file;
    return MS_OK;
}

int ms__push_add(ms__push *push, const char *path, bool is_found, ms_error *err)
{
    ms__push_file *file;
    if (find_file(push, path) != NULL) {
        return MS_OK;
    }
    int rc = add_file(push, path, &file, err);
    if (rc == MS_OK) {
        file->is_found = is_found;
        file->is_ended = push->options.is_ended;
    }
    return rc;
}

/* Spools come and go for as long as a process trains, so what is done is forgotten. */
static void forget_done(ms__push *push)
{
    size_t kept = 0;
    for (size_t i = 0; i < push->files.count; i++) {
        ms__push_file *file = push->files.items[i];
        if (file->is_done && file->is_spool) {
            ms__push_file_free(file);
        } else {
            push->files.items[kept++] = file;
        }
    }
    push->files.count = kept;
}

static int is_spool_name(const struct dirent *entry)
{
    size_t length = strlen(entry->d_name);
    return entry->d_name[0] != '.' && length > 4 && strcmp(entry->d_name + length - 4, ".log") == 0;
}

/* The bytes of a name that all files of its run share. */
static size_t run_length(const char *name)
{
    const char *dash = strrchr(name, '-');
    return dash != NULL ? (size_t)(dash - name) + 1 : strlen(name);
}

static bool is_same_run(const char *a, const char *b)
{
    size_t length = run_length(a);
    return length == run_length(b) && strncmp(a, b, length) == 0;
}

static int add_spooled(ms__push *push, const char *folder, const char *name, bool is_own, bool *is_taken, ms_error *err)
{
    char path[4096];
    ms__push_file *file;
    *is_taken = true;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path || find_file(push, path) != NULL) {
        return MS_OK;
    }
    int rc = add_file(push, path, &file, err);
    if (rc != MS_OK) {
        return rc;
    }
    file->is_spool = true;
    *is_taken = is_own || ms__push_file_take_over(file);
    if (!*is_taken) {
        push->files.count--;
        ms__push_file_free(file);
    }
    return MS_OK;
}

/* Whether somebody writes or sends this file. */
static bool is_held(const char *folder, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    bool is = fd < 0 || flock(fd, LOCK_EX | LOCK_NB) != 0;
    if (fd >= 0) {
        close(fd);
    }
    return is;
}

/*
 * Adds the `count` files of one run, in their order, which has to be kept: steps before the last one that the server has
 * are not counted. So a run of another process is left alone as a whole while its last file is written, and from
 * the first file on that somebody else sends.
 */
static int add_spooled_run(ms__push *push, const char *folder, struct dirent **entries, int count, const char *own,
                           ms_error *err)
{
    bool is_own = own != NULL && strncmp(entries[0]->d_name, own, strlen(own)) == 0;
    bool is_taken = is_own || find_file_in(push, folder, entries[count - 1]->d_name) != NULL ||
                    !is_held(folder, entries[count - 1]->d_name);
    int rc = MS_OK;
    for (int i = 0; rc == MS_OK && is_taken && i < count; i++) {
        rc = add_spooled(push, folder, entries[i]->d_name, is_own, &is_taken, err);
    }
    return rc;
}

int ms__push_add_spool(ms__push *push, const char *folder, const char *own, ms_error *err)
{
    struct dirent **entries;
    if (push->asked != NULL) {
        return ms_fail(err, MS_ESTATE, "push: a request waits for its answer");
    }
    forget_done(push);
    push->at = 0;
    int count = scandir(folder, &entries, is_spool_name, alphasort), rc = MS_OK;
    if (count < 0) {
        return ms_fail_errno(err, MS_ESYSTEM, errno, "%s", folder);
    }
    for (int first = 0, next = 0; rc == MS_OK && first < count; first = next) {
        for (next = first + 1; next < count && is_same_run(entries[first]->d_name, entries[next]->d_name);) {
            next++;
        }
        rc = add_spooled_run(push, folder, entries + first, next - first, own, err);
    }
    for (int i = 0; i < count; i++) {
        free(entries[i]);
    }
    free(entries);
    return rc;
}

/* ---- turns -------------------------------------------------------------------------- */

/* A file that can't be read is told once; in a spool it was removed to make room. */
static void tell_unreadable(ms__push *push, ms__push_file *file, const ms_error *problem)
{
    ms__run_log_rest(&file->log);
    if (file->is_spool) {
        file->is_done = true;
    } else if (!file->is_told) {
        file->is_told = true;
        tell(push, problem->text);
    }
}

static int look_at(ms__push *push, ms__push_file *file, ms__push_turn *turn, ms_error *err)
{
    char line[MS_ERROR_TEXT_MAX];
    ms_error problem;
    bool has = false, was_done = file->is_done;
    int rc = was_done ? MS_OK : ms__push_file_look(file, &push->options, &turn->request, &has, &problem);
    if (rc == MS_ENOMEM) {
        return ms_fail(err, rc, "%s", problem.text);
    }
    if (rc != MS_OK) {
        tell_unreadable(push, file, &problem);
    } else if (file->is_done && !was_done && !file->is_known && !file->is_found && !file->is_spool &&
               file->log.next_bytes > 0) {
        snprintf(line, sizeof line, "%s: not a run's log", file->name);
        tell(push, line);
    } else if (has) {
        turn->state = MS__PUSH_SEND;
        push->asked = file;
    }
    return MS_OK;
}

static void say_silent(ms__push *push)
{
    char line[MS_ERROR_TEXT_MAX];
    ms__unit_text patience = ms__text_ns(push->options.patience_ns);
    snprintf(line, sizeof line, "nothing was taken for %s; the last answer was: %s", patience.text, push->last_failure);
    stop(push, line);
}

int ms__push_next(ms__push *push, uint64_t now_ns, ms__push_turn *turn, ms_error *err)
{
    *turn = (ms__push_turn){.state = MS__PUSH_IDLE};
    if (push->asked != NULL) {
        return ms_fail(err, MS_ESTATE, "push: a request waits for its answer");
    }
    uint64_t patience_ns = push->options.patience_ns;
    if (!push->is_stopped && patience_ns > 0 && push->failures > 0 && now_ns - push->silent_since_ns >= patience_ns) {
        say_silent(push);
    }
    if (push->is_stopped) {
        *turn = (ms__push_turn){.state = MS__PUSH_STOPPED, .reason = push->reason};
        return MS_OK;
    }
    if (now_ns < push->wait_until_ns) {
        *turn = (ms__push_turn){
            .state = MS__PUSH_WAIT, .wait_ns = push->wait_until_ns - now_ns, .reason = push->last_failure};
        return MS_OK;
    }
    int rc = MS_OK;
    while (rc == MS_OK && turn->state == MS__PUSH_IDLE && push->at < push->files.count) {
        rc = look_at(push, push->files.items[push->at], turn, err);
        push->at += rc == MS_OK && turn->state == MS__PUSH_IDLE;
    }
    if (rc == MS_OK && turn->state == MS__PUSH_IDLE) {
        push->at = 0;
    }
    return rc;
}

/* ---- answers ---------------------------------------------------------------------------- */

static uint64_t pause_ns(const ms__push *push, uint64_t now_ns, uint64_t retry_after_s)
{
    uint64_t seconds = PAUSE_MOST_S;
    if (push->failures <= 9) {
        seconds = ms__min_u64((uint64_t)FIRST_PAUSE_S << (push->failures - 1), PAUSE_MOST_S);
    }
    /* Many clients of a server that comes back should not all come back at once. */
    uint64_t random = XXH3_64bits_withSeed(&now_ns, sizeof now_ns, (uint64_t)(uintptr_t)push) % 1000;
    uint64_t own_ns = seconds * NS_PER_S - seconds * NS_PER_S / 2000 * random;
    return ms__max_u64(own_ns, ms__min_u64(retry_after_s, RETRY_AFTER_MOST_S) * NS_PER_S);
}

static void note_failure(ms__push *push, uint64_t now_ns, const ms__push_answer *answer)
{
    if (push->failures++ == 0) {
        push->silent_since_ns = now_ns;
    }
    push->wait_until_ns = now_ns + pause_ns(push, now_ns, answer->retry_after_s);
    if (answer->status != 0) {
        snprintf(push->last_failure, sizeof push->last_failure, "status %d", answer->status);
    } else {
        snprintf(push->last_failure, sizeof push->last_failure, "%.*s", (int)answer->length,
                 answer->body != NULL ? answer->body : "");
    }
}

void ms__push_answered(ms__push *push, uint64_t now_ns, const ms__push_answer *answer)
{
    char news[MS_ERROR_TEXT_MAX];
    if (push->asked == NULL) {
        return;
    }
    ms__verdict verdict = ms__push_file_answer(push->asked, answer, &push->counts, news);
    push->asked = NULL;
    push->counts.requests++;
    if (verdict == MS__VERDICT_NEVER) {
        stop(push, news);
    } else if (verdict == MS__VERDICT_LATER) {
        tell(push, news);
        note_failure(push, now_ns, answer);
    } else {
        tell(push, news);
        push->failures = push->wait_until_ns = 0;
    }
}
