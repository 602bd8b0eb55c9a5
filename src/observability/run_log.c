/* Lines, files and batches of run_log.h. */
#include "observability/run_log.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/file.h"

enum { BUFFER_BYTES = 64 * 1024 };

static const char *const columns[MS__STEP_COLUMNS] = {
#define COLUMN_NAME(id, name) name,
    MS__STEP_TABLE(COLUMN_NAME)
#undef COLUMN_NAME
};

/* ---- lines ------------------------------------------------------------------ */

static ms__line_kind kind_of(const json_t *tree)
{
    const char *event = json_string_value(json_object_get(tree, "event"));
    if (event == NULL || !json_is_string(json_object_get(tree, "time")) ||
        json_integer_value(json_object_get(tree, "version")) != 1) {
        return MS__LINE_FOREIGN;
    }
    if (strcmp(event, "plan") == 0) {
        return MS__LINE_BEGIN;
    }
    if (strcmp(event, "step") == 0) {
        return MS__LINE_STEP;
    }
    return strcmp(event, "finish") == 0 || strcmp(event, "continued") == 0 ? MS__LINE_END : MS__LINE_OTHER;
}

static void read_step(const json_t *tree, ms__step *step)
{
    const json_t *told = json_object_get(tree, "step");
    for (int i = 0; i < MS__STEP_COLUMNS; i++) {
        const json_t *item = json_object_get(told, columns[i]);
        json_int_t value = json_integer_value(item);
        bool is_known = json_is_integer(item) && value >= 0 && (uint64_t)value <= MS__STEP_VALUE_MOST;
        step->value[i] = is_known ? (uint64_t)value : UINT64_MAX;
    }
}

int ms__line_read(const char *text, size_t length, ms__line *line, ms_error *err)
{
    json_t *tree = NULL;
    ms__json_at root;
    ms_error problem;
    *line = (ms__line){.kind = MS__LINE_FOREIGN};
    int rc = ms__json_parse(text, length, "line", &tree, &root, &problem);
    if (rc != MS_OK) {
        return rc == MS_ENOMEM ? ms_fail(err, rc, "log: out of memory for a line") : MS_OK;
    }
    line->kind = kind_of(tree);
    if (line->kind == MS__LINE_STEP) {
        read_step(tree, &line->step);
        uint64_t number = line->step.value[MS__STEP_NUMBER];
        line->kind = number == UINT64_MAX || number == 0 ? MS__LINE_OTHER : MS__LINE_STEP;
    }
    if (line->kind == MS__LINE_BEGIN || line->kind == MS__LINE_END) {
        line->tree = tree;
    } else {
        json_decref(tree);
    }
    return MS_OK;
}

/* ---- files -------------------------------------------------------------------- */

void ms__run_log_rest(ms__run_log *log)
{
    if (log->is_open) {
        close(log->fd);
    }
    ms_free(log->buffer);
    log->buffer = NULL;
    log->is_open = false;
    log->room = log->held = log->taken = 0;
}

void ms__run_log_go_to(ms__run_log *log, uint64_t next_bytes)
{
    log->next_bytes = next_bytes;
    log->is_in_long_line = false;
    log->held = log->taken = 0;
}

/* A pipe or a device would never end. */
static int check_file(ms__run_log *log, const struct stat *found, ms_error *err)
{
    if (!S_ISREG(found->st_mode)) {
        return ms_fail(err, MS_ESYSTEM, "%s: not a regular file", log->path);
    }
    bool was_read = log->file != 0;
    bool is_same = log->device == found->st_dev && log->file == found->st_ino;
    if (was_read && (!is_same || (uint64_t)found->st_size < log->next_bytes)) {
        ms__run_log_go_to(log, 0);
        log->has_begun_anew = true;
    }
    log->device = found->st_dev;
    log->file = found->st_ino;
    return MS_OK;
}

static int open_file(ms__run_log *log, ms_error *err)
{
    struct stat found;
    log->fd = open(log->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (log->fd < 0) {
        return ms_fail_errno(err, MS_ESYSTEM, errno, "%s", log->path);
    }
    log->is_open = true;
    int rc = fstat(log->fd, &found) == 0 ? check_file(log, &found, err)
                                         : ms_fail_errno(err, MS_ESYSTEM, errno, "%s", log->path);
    if (rc != MS_OK) {
        ms__run_log_rest(log);
    }
    return rc;
}

/* Room for more of a line: moves what is left to the front, or doubles the buffer. */
static int make_room(ms__run_log *log, ms_error *err)
{
    if (log->taken > 0) {
        memmove(log->buffer, log->buffer + log->taken, log->held - log->taken);
        log->held -= log->taken;
        log->taken = 0;
    }
    if (log->held < log->room) {
        return MS_OK;
    }
    size_t room = log->room == 0 ? BUFFER_BYTES : 2 * log->room;
    char *larger = ms_realloc_array(log->buffer, room, 1);
    if (larger == NULL) {
        return ms_fail(err, MS_ENOMEM, "%s: out of memory for a line", log->path);
    }
    log->buffer = larger;
    log->room = room;
    return MS_OK;
}

/* Adds the file's next bytes to the buffer; `*got` is 0 at its present end. */
static int read_more(ms__run_log *log, size_t *got, ms_error *err)
{
    int rc = make_room(log, err);
    if (rc != MS_OK) {
        return rc;
    }
    ssize_t moved = ms__os_pread(log->fd, log->buffer + log->held, log->room - log->held, log->next_bytes + log->held);
    if (moved < 0 && moved != -EINTR && moved != -EAGAIN) {
        return ms_fail_errno(err, MS_EIO, (int)-moved, "%s", log->path);
    }
    *got = moved > 0 ? (size_t)moved : 0;
    log->held += *got;
    return MS_OK;
}

/* Takes the line that ends at `end`. Of a line that was too long only its end is left, which is given as empty. */
static void take_line(ms__run_log *log, const char *end, const char **text, size_t *length)
{
    *text = log->buffer + log->taken;
    *length = log->is_in_long_line ? 0 : (size_t)(end - *text);
    log->next_bytes += (size_t)(end - *text) + 1;
    log->taken += (size_t)(end - *text) + 1;
    log->is_in_long_line = false;
}

static void drop_long_line(ms__run_log *log)
{
    log->next_bytes += log->held - log->taken;
    log->held = log->taken = 0;
    log->is_in_long_line = true;
}

int ms__run_log_next(ms__run_log *log, const char **text, size_t *length, ms_error *err)
{
    int rc = log->is_open ? MS_OK : open_file(log, err);
    size_t looked = 0, got = 1; /* bytes of the buffer without a newline */
    *text = NULL;
    while (rc == MS_OK && got > 0) {
        size_t from = log->taken + looked;
        const char *end = log->held > from ? memchr(log->buffer + from, '\n', log->held - from) : NULL;
        if (end != NULL) {
            take_line(log, end, text, length);
            return MS_OK;
        }
        looked = log->held - log->taken;
        if (looked >= MS__LINE_MOST_BYTES) {
            drop_long_line(log);
            looked = 0;
        }
        rc = read_more(log, &got, err);
    }
    ms__run_log_rest(log);
    return rc;
}

/* ---- batches -------------------------------------------------------------------- */

static bool is_column_known(const ms__step *steps, size_t count, int column)
{
    for (size_t i = 0; i < count; i++) {
        if (steps[i].value[column] != UINT64_MAX) {
            return true;
        }
    }
    return false;
}

static void put_column(ms__json_writer *writer, json_t *object, const ms__step *steps, size_t count, int column)
{
    json_t *list = ms__json_put_array(writer, object, columns[column]);
    for (size_t i = 0; i < count && writer->code == MS_OK; i++) {
        if (steps[i].value[column] != UINT64_MAX) {
            ms__json_add_u64(writer, list, steps[i].value[column]);
        } else if (json_array_append_new(list, json_null()) != 0) {
            writer->code = MS_ENOMEM;
        }
    }
}

char *ms__batch_text(const ms__step *steps, size_t count, uint64_t sequence)
{
    ms__json_writer writer = {0};
    json_t *root = ms__json_new(&writer);
    ms__json_put_u64(&writer, root, "sequence", sequence);
    json_t *object = ms__json_put_object(&writer, root, "columns");
    for (int i = 0; i < MS__STEP_COLUMNS; i++) {
        if (is_column_known(steps, count, i)) {
            put_column(&writer, object, steps, count, i);
        }
    }
    char *text = writer.code == MS_OK ? ms__json_text(root, true) : NULL;
    json_decref(root);
    return text;
}
