/*
 * What the tests of pushes share: logs, and a server that keeps what it takes by the real server's rules. For
 * test_push.c and test_push_refused.c.
 */
#ifndef MS_TEST_PUSH_FIXTURE_H
#define MS_TEST_PUSH_FIXTURE_H

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "observability/push.h"
#include "test_common.h"

#define S ((uint64_t)1000000000)
#define HEAD \
    "{\"version\":1,\"time\":\"2026-01-01T00:00:00.000+00:00\",\"level\":\"info\",\"message\":\"a/secret\",\"event\":"

static char folder[64], path[128];
static ms_error err;

static inline int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "memscale-push-XXXXXX");
    if (mkdtemp(folder) == NULL) {
        return 1;
    }
    snprintf(path, sizeof path, "%s/run.log", folder);
    return 0;
}

static inline int remove_entry(const char *entry, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    return remove(entry);
}

static inline int remove_folder(void **state)
{
    (void)state;
    ms_fault_disarm_all();
    return nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- logs ------------------------------------------------------------------------ */

static inline void put(const char *file, const char *text)
{
    FILE *stream = fopen(file, "a");
    assert_non_null(stream);
    assert_true(fputs(text, stream) >= 0);
    assert_int_equal(fclose(stream), 0);
}

static inline void put_plan(const char *file, const char *model)
{
    char line[1024];
    snprintf(line, sizeof line,
             HEAD
             "\"plan\",\"plan\":{\"model\":\"%s\",\"signature\":\"path='/secret'\",\"pressure\":{\"allowed_bytes\":"
             "4000},\"predicted\":{\"peak_bytes\":3000,\"step_ns\":2000}}}\n",
             model);
    put(file, line);
}

static inline void put_steps(const char *file, uint64_t first, uint64_t last)
{
    FILE *stream = fopen(file, "a");
    assert_non_null(stream);
    for (uint64_t number = first; number <= last; number++) {
        fprintf(stream, HEAD "\"step\",\"step\":{\"step\":%llu,\"step_ns\":5}}\n", (unsigned long long)number);
    }
    fclose(stream);
}

static inline void put_finish(const char *file)
{
    put(file, HEAD "\"finish\",\"outcome\":\"finished\",\"counters\":{\"steps\":3,\"secret\":\"x\"}}\n");
}

/* ---- a server ----------------------------------------------------------------------- */

enum { RUNS_MOST = 8, STEPS_MOST = 4096 };

typedef struct kept_run {
    char key[48], body[2048], outcome[32];
    uint64_t sequence, count, steps[STEPS_MOST];
} kept_run;

static kept_run runs[RUNS_MOST];
static size_t run_count, largest_batch, requests;
static char answer_text[256];

static inline int forget_all(void **state)
{
    memset(runs, 0, sizeof runs);
    run_count = largest_batch = requests = 0;
    return make_folder(state);
}

static inline ms__push_answer answer(int status, const char *text)
{
    snprintf(answer_text, sizeof answer_text, "%s", text);
    return (ms__push_answer){.status = status, .body = answer_text, .length = strlen(answer_text)};
}

static inline ms__push_answer answer_place(int status, size_t run, int counted)
{
    snprintf(answer_text, sizeof answer_text,
             "{\"id\":\"r%zu\",\"last_sequence\":%llu,\"last_step\":%llu,\"counted\":%s}", run,
             (unsigned long long)runs[run].sequence,
             (unsigned long long)(runs[run].count > 0 ? runs[run].steps[runs[run].count - 1] : 0),
             counted ? "true" : "false");
    return (ms__push_answer){.status = status, .body = answer_text, .length = strlen(answer_text)};
}

static inline ms__push_answer serve_create(const ms__push_request *request)
{
    assert_non_null(request->key);
    for (size_t i = 0; i < run_count; i++) {
        if (strcmp(runs[i].key, request->key) == 0) {
            return strcmp(runs[i].body, request->body) == 0 ? answer_place(200, i, 0) : answer(409, "{}");
        }
    }
    assert_true(run_count < RUNS_MOST);
    kept_run *run = &runs[run_count++];
    snprintf(run->key, sizeof run->key, "%s", request->key);
    snprintf(run->body, sizeof run->body, "%s", request->body);
    return answer_place(201, run_count - 1, 0);
}

static inline ms__push_answer serve_append(size_t index, const ms__json_at *root)
{
    kept_run *run = &runs[index];
    ms__json_at columns, list;
    uint64_t sequence, number;
    assert_ms_ok(ms__json_u64(root, "sequence", 1, UINT64_MAX, &sequence), err);
    assert_ms_ok(ms__json_object(root, "columns", &columns), err);
    assert_ms_ok(ms__json_array(&columns, "step", &list), err);
    size_t count = ms__json_count(&list);
    if (sequence <= run->sequence) {
        return answer_place(200, index, 0);
    }
    if (sequence > run->sequence + 1 || run->outcome[0] != '\0') {
        return answer(409, "{\"detail\":\"a gap, or ended\"}");
    }
    for (size_t i = 0; i < count; i++) {
        assert_ms_ok(ms__json_item_u64(&list, i, 1, UINT64_MAX, &number), err);
        assert_true(run->count == 0 || number > run->steps[run->count - 1]); /* the real one answers 422 */
        assert_true(run->count < STEPS_MOST);
        run->steps[run->count++] = number;
    }
    largest_batch = count > largest_batch ? count : largest_batch;
    run->sequence = sequence;
    return answer_place(200, index, 1);
}

static inline ms__push_answer serve_finish(size_t index, const ms__json_at *root)
{
    const char *outcome;
    assert_ms_ok(ms__json_string(root, "outcome", &outcome), err);
    if (runs[index].outcome[0] != '\0' && strcmp(runs[index].outcome, outcome) != 0) {
        return answer(409, "{}");
    }
    snprintf(runs[index].outcome, sizeof runs[index].outcome, "%s", outcome);
    return answer(204, "");
}

/* The real server's rules, in the fewest lines. */
static inline ms__push_answer serve(const ms__push_request *request)
{
    size_t index;
    char verb[16] = "";
    json_t *tree;
    ms__json_at root;
    requests++;
    if (strcmp(request->target, "/api/v1/runs") == 0) {
        return serve_create(request);
    }
    assert_null(request->key);
    assert_int_equal(sscanf(request->target, "/api/v1/runs/r%zu/%15s", &index, verb), 2);
    assert_true(index < run_count);
    assert_ms_ok(ms__json_parse(request->body, strlen(request->body), "body", &tree, &root, &err), err);
    ms__push_answer given = strcmp(verb, "steps") == 0 ? serve_append(index, &root) : serve_finish(index, &root);
    json_decref(tree);
    return given;
}

static inline ms__push *push_of(const ms__push_options *options)
{
    static const ms__push_options usual = {0};
    ms__push *push;
    assert_ms_ok(ms__push_new(options != NULL ? options : &usual, &push, &err), err);
    return push;
}

static inline ms__push_turn turn_of(ms__push *push, uint64_t now_ns)
{
    ms__push_turn turn;
    assert_ms_ok(ms__push_next(push, now_ns, &turn, &err), err);
    return turn;
}

/* Serves until there is nothing left. */
static inline void serve_all(ms__push *push, uint64_t now_ns)
{
    for (ms__push_turn turn = turn_of(push, now_ns); turn.state != MS__PUSH_IDLE; turn = turn_of(push, now_ns)) {
        assert_int_equal(turn.state, MS__PUSH_SEND);
        ms__push_answer given = serve(&turn.request);
        ms__push_answered(push, now_ns, &given);
    }
}

static inline void assert_steps(size_t run, uint64_t first, uint64_t last)
{
    assert_int_equal(runs[run].count, last - first + 1);
    for (uint64_t i = 0; i < runs[run].count; i++) {
        assert_int_equal(runs[run].steps[i], first + i);
    }
}

static inline void assert_news(ms__push *push, const char *part)
{
    char *line = ms__push_news(push);
    assert_non_null(line);
    if (strstr(line, part) == NULL) {
        fail_msg("\"%s\" does not contain \"%s\"", line, part);
    }
    ms_free(line);
}

static inline void assert_no_news(ms__push *push)
{
    char *line = ms__push_news(push);
    assert_string_equal(line != NULL ? line : "", "");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, forget_all, remove_folder)

#endif
