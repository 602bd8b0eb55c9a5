/*
 * Logs reach a server whole and once, whatever fails on the way. Bodies hold nothing but what push.h lists.
 */
#include "push_fixture.h"

/* ---- what is sent --------------------------------------------------------------------- */

static void a_log_is_sent_whole_in_bounded_batches(void **state)
{
    (void)state;
    ms__push *push = push_of(NULL);
    put_plan(path, "Net");
    put_steps(path, 1, 2500);
    put_finish(path);
    assert_ms_ok(ms__push_add(push, path, false, &err), err);
    assert_ms_ok(ms__push_add(push, path, false, &err), err);
    serve_all(push, 0);
    assert_int_equal(run_count, 1);
    assert_steps(0, 1, 2500);
    assert_int_equal(largest_batch, 1000);
    assert_int_equal(requests, 5);
    assert_string_equal(runs[0].outcome, "finished");
    ms__push_counts counts = ms__push_count(push);
    assert_true(counts.runs == 1 && counts.steps == 2500 && counts.refused_runs == 0 && counts.requests == 5);
    assert_no_news(push);
    ms__push_free(push);
}

static void a_run_is_told_in_listed_words_only(void **state)
{
    (void)state;
    ms__push *push = push_of(NULL);
    put_plan(path, "Net");
    put_steps(path, 1, 1);
    put_finish(path);
    assert_ms_ok(ms__push_add(push, path, false, &err), err);
    ms__push_turn turn = turn_of(push, 0);
    assert_string_equal(turn.request.body,
                        "{\"name\":\"run.log\",\"model\":\"Net\",\"budget_bytes\":4000,\"predicted_peak_bytes\":3000,"
                        "\"predicted_step_ns\":2000,\"plan\":{\"model\":\"Net\",\"signature\":\"\",\"pressure\":{"
                        "\"allowed_bytes\":4000},\"predicted\":{\"peak_bytes\":3000,\"step_ns\":2000}}}");
    ms__push_answer given = serve(&turn.request);
    ms__push_answered(push, 0, &given);
    turn = turn_of(push, 0);
    assert_string_equal(turn.request.body, "{\"sequence\":1,\"columns\":{\"step\":[1],\"step_ns\":[5]}}");
    given = serve(&turn.request);
    ms__push_answered(push, 0, &given);
    turn = turn_of(push, 0);
    assert_string_equal(turn.request.body, "{\"outcome\":\"finished\",\"counters\":{\"steps\":3}}");
    ms__push_free(push);
}

static void options_and_a_spool_s_own_words_name_a_run(void **state)
{
    (void)state;
    ms__push_options options = {.project = "nlp", .name = "a\tb"};
    ms__push *push = push_of(&options);
    put(path, HEAD "\"plan\",\"run\":{\"key\":\"0123-abc\",\"project\":\"p\",\"name\":\"n\",\"model\":\"M\","
                   "\"machine\":\"node\",\"versions\":{"
                   "\"torch\":\"2\",\"x\":3},\"host\":\"secret\"}}\n");
    assert_ms_ok(ms__push_add(push, path, false, &err), err);
    ms__push_turn turn = turn_of(push, 0);
    assert_string_equal(turn.request.key, "0123-abc");
    assert_string_equal(
        turn.request.body,
        "{\"project\":\"nlp\",\"name\":\"a b\",\"model\":\"M\",\"machine\":\"node\",\"versions\":{\"torch\":\"2\"}}");
    ms__push_free(push);
    push = push_of(NULL);
    assert_ms_ok(ms__push_add(push, path, false, &err), err);
    turn = turn_of(push, 0);
    assert_string_equal(
        turn.request.body,
        "{\"project\":\"p\",\"name\":\"n\",\"model\":\"M\",\"machine\":\"node\",\"versions\":{\"torch\":\"2\"}}");
    ms__push_free(push);
}

static void documents_go_without_paths_and_values(void **state)
{
    (void)state;
    ms__push *push = push_of(NULL);
    put(path,
        HEAD "\"plan\",\"plan\":{\"model\":\"M\",\"signature\":\"x=/a/secret\"},\"graph\":{\"model\":\"M\","
             "\"signature\":\"x=/a/secret\",\"nodes\":[1]},\"hardware\":{\"disk\":{\"dir\":\"/home/me\"},\"ram\":{"
             "\"limit_source\":\"/sys/x\"}},\"config\":{\"log_file\":\"/home/me/x\",\"disk_offload_dir\":\"/home/me\","
             "\"mode\":\"balanced\"}}\n");
    assert_ms_ok(ms__push_add(push, path, false, &err), err);
    ms__push_turn turn = turn_of(push, 0);
    assert_string_equal(
        turn.request.body,
        "{\"name\":\"run.log\",\"model\":\"M\",\"graph\":{\"model\":\"M\",\"signature\":\"\",\"nodes\":[1]},"
        "\"plan\":{\"model\":\"M\",\"signature\":\"\"},\"hardware\":{\"disk\":{\"dir\":\"disk\"},\"ram\":{"
        "\"limit_source\":\"\"}},\"config\":{\"log_file\":null,\"disk_offload_dir\":null,"
        "\"mode\":\"balanced\"},\"graph_digest\":\"xxh3-ff8a78b912a8b269\"}");
    ms__push_free(push);
}

/* No tier on disk, and a wrap that has no budget of its own. */
static void documents_that_name_no_path_go_as_they_are(void **state)
{
    (void)state;
    ms__push *push = push_of(NULL);
    put(path, HEAD "\"plan\",\"hardware\":{\"disk\":{\"dir\":\"\"}},\"config\":{\"log_file\":null},\"graph\":3}\n");
    assert_ms_ok(ms__push_add(push, path, false, &err), err);
    ms__push_turn turn = turn_of(push, 0);
    assert_string_equal(turn.request.body, "{\"name\":\"run.log\",\"model\":\"unknown\",\"hardware\":{\"disk\":{"
                                           "\"dir\":\"\"}},\"config\":{\"log_file\":null}}");
    ms__push_free(push);
}

static void long_names_are_cut_between_characters(void **state)
{
    (void)state;
    char model[400] = "";
    for (int i = 0; i < 100; i++) {
        strcat(model, i == 0 ? "x" : "\xc3\xa4");
    }
    ms__push *push = push_of(NULL);
    put_plan(path, model);
    assert_ms_ok(ms__push_add(push, path, false, &err), err);
    ms__push_turn turn = turn_of(push, 0);
    json_t *tree;
    ms__json_at root;
    const char *text;
    assert_ms_ok(ms__json_parse(turn.request.body, strlen(turn.request.body), "body", &tree, &root, &err), err);
    assert_ms_ok(ms__json_string(&root, "model", &text), err);
    assert_int_equal(strlen(text), 119);
    assert_memory_equal(text, model, 119);
    json_decref(tree);
    ms__push_free(push);
}

static void each_plan_begins_a_run_and_stops_the_one_before(void **state)
{
    (void)state;
    ms__push *push = push_of(NULL);
    put_plan(path, "A");
    put_steps(path, 1, 5);
    put_plan(path, "B");
    put_steps(path, 1, 3);
    assert_ms_ok(ms__push_add(push, path, false, &err), err);
    serve_all(push, 0);
    assert_int_equal(run_count, 2);
    assert_steps(0, 1, 5);
    assert_steps(1, 1, 3);
    assert_string_equal(runs[0].outcome, "stopped");
    assert_string_equal(runs[1].outcome, "");
    put_steps(path, 2, 6); /* what does not follow is left out */
    serve_all(push, 0);
    assert_steps(1, 1, 6);
    ms__push_free(push);
}

static void a_log_whose_begin_is_lost_is_a_run_too(void **state)
{
    (void)state;
    ms__push_options options = {.is_ended = true};
    ms__push *push = push_of(&options);
    put(path, HEAD "\"message\"}\n");
    put_steps(path, 7, 9);
    assert_ms_ok(ms__push_add(push, path, false, &err), err);
    serve_all(push, 0);
    assert_steps(0, 7, 9);
    assert_non_null(strstr(runs[0].body, "\"model\":\"unknown\""));
    assert_string_equal(runs[0].outcome, "stopped");
    ms__push_free(push);
}

static void other_files_are_left_alone(void **state)
{
    (void)state;
    char other[160];
    ms__push *push = push_of(NULL);
    put(path, "hello\n");
    put_plan(path, "A");
    snprintf(other, sizeof other, "%s/none.log", folder);
    assert_ms_ok(ms__push_add(push, path, false, &err), err);
    assert_ms_ok(ms__push_add(push, other, false, &err), err);
    for (int i = 0; i < 3; i++) {
        serve_all(push, 0);
    }
    assert_int_equal(requests, 0);
    assert_news(push, "run.log: not a run's log");
    assert_news(push, "none.log");
    assert_no_news(push);
    ms__push_free(push);
    push = push_of(NULL);
    assert_ms_ok(ms__push_add(push, path, true, &err), err);
    serve_all(push, 0);
    assert_no_news(push);
    ms__push_free(push);
}

/* ---- once ----------------------------------------------------------------------------- */

static void sending_again_from_the_start_adds_only_new_steps(void **state)
{
    (void)state;
    put_plan(path, "Net");
    for (uint64_t last = 10; last <= 40; last += 15) {
        put_steps(path, last == 10 ? 1 : last - 14, last);
        ms__push *push = push_of(NULL);
        assert_ms_ok(ms__push_add(push, path, false, &err), err);
        serve_all(push, 0);
        ms__push_free(push);
    }
    assert_int_equal(run_count, 1);
    assert_steps(0, 1, 40);
    ms__push_options named = {.name = "other"};
    ms__push *push = push_of(&named);
    assert_ms_ok(ms__push_add(push, path, false, &err), err);
    serve_all(push, 0);
    assert_int_equal(run_count, 2);
    ms__push_free(push);
}

static void two_that_send_the_same_log_add_each_step_once(void **state)
{
    (void)state;
    ms__push *one = push_of(NULL), *other = push_of(NULL);
    assert_ms_ok(ms__push_add(one, path, false, &err), err);
    assert_ms_ok(ms__push_add(other, path, false, &err), err);
    put_plan(path, "Net");
    for (uint64_t step = 1; step < 60; step += 3) {
        put_steps(path, step, step + 2);
        ms__push_turn first = turn_of(one, 0); /* under way, while the other is faster or slower */
        if (step % 2 == 0) {
            serve_all(other, 0);
        }
        if (first.state == MS__PUSH_SEND) {
            ms__push_answer given = serve(&first.request);
            ms__push_answered(one, 0, &given);
        }
        serve_all(one, 0);
    }
    serve_all(other, 0);
    assert_int_equal(run_count, 1);
    assert_steps(0, 1, 60);
    ms__push_free(one);
    ms__push_free(other);
}

/* One request at the server, which may lose it, lose its answer, or be out of order. */
static void serve_badly(ms__push *push, const ms__push_request *request, uint64_t now_ns, unsigned chance)
{
    static const int busy[] = {500, 503, 429, 408, 507};
    ms__push_answer given = answer(busy[chance % 5], "{}");
    if (chance % 4 == 0) {
        given = answer(0, "timed out");
    } else if (chance % 4 == 1) {
        (void)serve(request); /* stored, but the answer is lost */
        given = answer(0, "connection reset");
    } else if (chance % 4 == 2) {
        given = serve(request);
    }
    ms__push_answered(push, now_ns, &given);
}

static void a_bad_network_neither_loses_nor_doubles(void **state)
{
    (void)state;
    put_plan(path, "A");
    uint64_t now_ns = S, step = 1;
    ms__push *push = push_of(NULL);
    assert_ms_ok(ms__push_add(push, path, false, &err), err);
    for (unsigned i = 0; i < 3000; i++) {
        unsigned chance = i * 2654435761u >> 7;
        if (i % 3 == 0 && step < 900) {
            put_steps(path, step, step + chance % 4);
            step += chance % 4 + 1;
        }
        if (chance % 97 == 0) { /* the sender dies */
            ms__push_free(push);
            push = push_of(NULL);
            assert_ms_ok(ms__push_add(push, path, false, &err), err);
        }
        ms__push_turn turn = turn_of(push, now_ns);
        if (turn.state == MS__PUSH_SEND) {
            serve_badly(push, &turn.request, now_ns, chance);
        }
        now_ns += turn.state == MS__PUSH_WAIT ? turn.wait_ns : S;
    }
    now_ns += 600 * S;
    serve_all(push, now_ns);
    assert_int_equal(run_count, 1);
    assert_steps(0, 1, step - 1);
    assert_no_news(push);
    ms__push_free(push);
}

static void a_server_that_was_restored_gets_what_it_lacks(void **state)
{
    (void)state;
    ms__push *push = push_of(NULL);
    assert_ms_ok(ms__push_add(push, path, false, &err), err);
    put_plan(path, "A");
    for (uint64_t i = 0; i < 10; i++) {
        put_steps(path, 5 * i + 1, 5 * i + 5);
        serve_all(push, 0);
        if (i == 7) { /* a backup of an hour ago */
            runs[0].sequence = 3;
            runs[0].count = 15;
        }
    }
    assert_steps(0, 1, 50);
    assert_no_news(push);
    ms__push_free(push);
}

static void a_run_that_has_ended_on_the_server_is_left_out(void **state)
{
    (void)state;
    ms__push *push = push_of(NULL);
    assert_ms_ok(ms__push_add(push, path, false, &err), err);
    put_plan(path, "A");
    put_steps(path, 1, 5);
    serve_all(push, 0);
    strcpy(runs[0].outcome, "stopped");
    put_steps(path, 6, 9);
    put_plan(path, "B");
    put_steps(path, 1, 2);
    serve_all(push, 0);
    assert_steps(0, 1, 5);
    assert_steps(1, 1, 2);
    assert_news(push, "has ended");
    ms__push_free(push);
}

/* ---- spools ----------------------------------------------------------------------------- */

static int hold(const char *file)
{
    int fd = open(file, O_RDONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    return fd;
}

#define SPOOLED HEAD "\"plan\",\"run\":{\"key\":\"ab\",\"model\":\"M\"}}\n"

static void a_spool_s_files_go_in_their_order_and_are_removed(void **state)
{
    (void)state;
    char first[128], second[128];
    snprintf(first, sizeof first, "%s/a-0-1.log", folder);
    snprintf(second, sizeof second, "%s/a-0-2.log", folder);
    put(first, SPOOLED);
    put_steps(first, 1, 5);
    int held = hold(first);
    ms__push *push = push_of(NULL);
    assert_ms_ok(ms__push_add_spool(push, folder, "a-", &err), err);
    serve_all(push, 0);
    assert_steps(0, 1, 5);
    put_steps(first, 6, 7); /* the last lines of the first, and the next file, before we look again */
    put(first, HEAD "\"continued\"}\n");
    close(held);
    put(second, SPOOLED);
    put_steps(second, 8, 9);
    held = hold(second);
    assert_ms_ok(ms__push_add_spool(push, folder, "a-", &err), err);
    serve_all(push, 0);
    assert_int_equal(run_count, 1);
    assert_steps(0, 1, 9);
    assert_int_equal(access(first, F_OK), -1);
    assert_int_equal(access(second, F_OK), 0);
    put_finish(second);
    close(held);
    assert_ms_ok(ms__push_add_spool(push, folder, "a-", &err), err);
    serve_all(push, 0);
    assert_int_equal(access(second, F_OK), -1);
    assert_string_equal(runs[0].outcome, "finished");
    ms__push_free(push);
}

static void what_others_left_is_taken_over_once_they_have_gone(void **state)
{
    (void)state;
    char left[128], live[128];
    snprintf(left, sizeof left, "%s/b-0-1.log", folder);
    snprintf(live, sizeof live, "%s/c-0-1.log", folder);
    put(left, SPOOLED);
    put_steps(left, 1, 3);
    put(live, HEAD "\"plan\",\"run\":{\"key\":\"cd\",\"model\":\"M\"}}\n");
    int held = hold(live);
    ms__push *push = push_of(NULL), *other = push_of(NULL);
    assert_ms_ok(ms__push_add_spool(push, folder, "a-", &err), err);
    assert_ms_ok(ms__push_add_spool(other, folder, NULL, &err), err); /* the first has it already */
    serve_all(other, 0);
    assert_int_equal(requests, 0);
    serve_all(push, 0);
    assert_int_equal(run_count, 1);
    assert_steps(0, 1, 3);
    assert_string_equal(runs[0].outcome, "stopped");
    assert_int_equal(access(left, F_OK), -1);
    assert_int_equal(access(live, F_OK), 0);
    close(held);
    ms__push_free(push);
    ms__push_free(other);
    push = push_of(NULL);
    assert_ms_fails(ms__push_add_spool(push, "no/such", NULL, &err), MS_ESYSTEM, err, "no/such");
    ms__push_free(push);
}

static void running_out_of_memory_loses_nothing(void **state)
{
    (void)state;
    put_plan(path, "A");
    put_steps(path, 1, 20);
    put_finish(path);
    ms__push *push = push_of(NULL);
    assert_ms_ok(ms__push_add(push, path, false, &err), err);
    for (uint64_t nth = 1; runs[0].outcome[0] == '\0'; nth++) {
        ms__push_turn turn;
        ms_fault_arm(MS_FAULT_ALLOC, nth, ENOMEM);
        int rc = ms__push_next(push, 0, &turn, &err);
        ms_fault_disarm_all();
        assert_true(rc == MS_OK || rc == MS_ENOMEM);
        if (rc == MS_OK && turn.state == MS__PUSH_SEND) {
            ms__push_answer given = serve(&turn.request);
            ms__push_answered(push, 0, &given);
        }
    }
    assert_int_equal(run_count, 1);
    assert_steps(0, 1, 20);
    ms__push_free(push);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_log_is_sent_whole_in_bounded_batches),
        TEST(a_run_is_told_in_listed_words_only),
        TEST(options_and_a_spool_s_own_words_name_a_run),
        TEST(documents_go_without_paths_and_values),
        TEST(documents_that_name_no_path_go_as_they_are),
        TEST(long_names_are_cut_between_characters),
        TEST(each_plan_begins_a_run_and_stops_the_one_before),
        TEST(a_log_whose_begin_is_lost_is_a_run_too),
        TEST(other_files_are_left_alone),
        TEST(sending_again_from_the_start_adds_only_new_steps),
        TEST(two_that_send_the_same_log_add_each_step_once),
        TEST(a_bad_network_neither_loses_nor_doubles),
        TEST(a_server_that_was_restored_gets_what_it_lacks),
        TEST(a_run_that_has_ended_on_the_server_is_left_out),
        TEST(a_spool_s_files_go_in_their_order_and_are_removed),
        TEST(what_others_left_is_taken_over_once_they_have_gone),
        TEST(running_out_of_memory_loses_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
