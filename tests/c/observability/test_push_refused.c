/* What a server's refusals change: nothing, one run, the size of requests, the time of the next, or everything. */
#include "push_fixture.h"

/* ---- refusals ------------------------------------------------------------------------- */

/* Answers the next request so, whatever it is. */
static void refuse(ms__push *push, uint64_t now_ns, int status, const char *text)
{
    ms__push_turn turn = turn_of(push, now_ns);
    assert_int_equal(turn.state, MS__PUSH_SEND);
    ms__push_answer given = answer(status, text);
    ms__push_answered(push, now_ns, &given);
}

static void some_refusals_end_everything(void **state)
{
    (void)state;
    static const struct {
        int status;
        const char *part;
    } cases[] = {{401, "token"},     {403, "runs:write"}, {404, "no memscale-server"}, {421, "no memscale-server"},
                 {301, "elsewhere"}, {308, "elsewhere"}};
    put_plan(path, "A");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ms__push *push = push_of(NULL);
        assert_ms_ok(ms__push_add(push, path, false, &err), err);
        refuse(push, 0, cases[i].status, "");
        ms__push_turn turn = turn_of(push, 1000 * S);
        assert_int_equal(turn.state, MS__PUSH_STOPPED);
        assert_non_null(strstr(turn.reason, cases[i].part));
        ms__push_free(push);
    }
}

static void a_refused_run_is_told_and_the_next_one_sent(void **state)
{
    (void)state;
    ms__push *push = push_of(NULL);
    put_plan(path, "A");
    put_steps(path, 1, 5);
    put_finish(path);
    put_plan(path, "B");
    put_steps(path, 1, 2);
    assert_ms_ok(ms__push_add(push, path, false, &err), err);
    refuse(push, 0, 422, "{\"detail\":\"no\\u001b[2Jgood\"}");
    serve_all(push, 0);
    assert_int_equal(run_count, 1);
    assert_steps(0, 1, 2);
    assert_news(push, "run.log: the server refused this run with status 422: no?[2Jgood");
    assert_int_equal(ms__push_count(push).refused_runs, 1);
    ms__push_free(push);
}

static void too_much_is_sent_in_smaller_pieces(void **state)
{
    (void)state;
    ms__push *push = push_of(NULL);
    put_plan(path, "A");
    put_steps(path, 1, 100);
    assert_ms_ok(ms__push_add(push, path, false, &err), err);
    refuse(push, 0, 413, "");
    ms__push_turn turn = turn_of(push, 0);
    assert_null(strstr(turn.request.body, "plan\""));
    ms__push_answer given = serve(&turn.request);
    ms__push_answered(push, 0, &given);
    refuse(push, 0, 413, "");
    refuse(push, 0, 413, "");
    serve_all(push, 0);
    assert_steps(0, 1, 100);
    assert_int_equal(largest_batch, 25);
    put_steps(path, 101, 101);
    refuse(push, 0, 413, ""); /* one step can't be less */
    assert_int_equal(turn_of(push, 0).state, MS__PUSH_IDLE);
    assert_news(push, "413");
    ms__push_free(push);
}

static void a_server_that_finds_a_run_s_begin_too_long_gets_the_plan_without_the_graph(void **state)
{
    (void)state;
    ms__push *push = push_of(NULL);
    put(path, HEAD "\"plan\",\"plan\":{\"model\":\"A\"},\"graph\":{\"nodes\":[]},\"hardware\":{\"cpu\":{}}}\n");
    assert_ms_ok(ms__push_add(push, path, false, &err), err);
    const struct {
        bool has_graph, has_plan, has_hardware;
    } sent[] = {{true, true, true}, {false, true, true}, {false, false, true}, {false, false, false}};
    for (size_t i = 0; i < sizeof sent / sizeof sent[0]; i++) {
        ms__push_turn turn = turn_of(push, 0);
        assert_int_equal(strstr(turn.request.body, "graph\"") != NULL, sent[i].has_graph);
        assert_int_equal(strstr(turn.request.body, "plan\"") != NULL, sent[i].has_plan);
        assert_int_equal(strstr(turn.request.body, "hardware\"") != NULL, sent[i].has_hardware);
        ms__push_answered(push, 0, &(ms__push_answer){.status = 413});
    }
    assert_int_equal(ms__push_count(push).refused_runs, 1);
    ms__push_free(push);
}

static void pauses_double_up_to_five_minutes_and_end_with_success(void **state)
{
    (void)state;
    ms__push *push = push_of(NULL);
    put_plan(path, "A");
    assert_ms_ok(ms__push_add(push, path, false, &err), err);
    uint64_t now_ns = 5 * S, longest_s = 1;
    for (int i = 0; i < 20; i++) {
        refuse(push, now_ns, i % 2 == 0 ? 503 : 0, "");
        ms__push_turn turn = turn_of(push, now_ns);
        assert_int_equal(turn.state, MS__PUSH_WAIT);
        assert_true(turn.wait_ns <= longest_s * S && turn.wait_ns * 2 >= longest_s * S);
        longest_s = longest_s * 2 > 300 ? 300 : longest_s * 2;
        assert_int_equal(turn_of(push, now_ns + turn.wait_ns - 1).state, MS__PUSH_WAIT);
        now_ns += turn.wait_ns;
    }
    serve_all(push, now_ns);
    put_steps(path, 1, 1);
    refuse(push, now_ns, 500, "");
    assert_true(turn_of(push, now_ns).wait_ns <= S);
    ms__push_free(push);
}

static void a_server_that_names_a_pause_gets_it(void **state)
{
    (void)state;
    ms__push *push = push_of(NULL);
    put_plan(path, "A");
    assert_ms_ok(ms__push_add(push, path, false, &err), err);
    ms__push_turn turn = turn_of(push, S);
    ms__push_answer given = {.status = 429, .retry_after_s = 17};
    ms__push_answered(push, S, &given);
    assert_int_equal(turn_of(push, S).wait_ns, 17 * S);
    turn = turn_of(push, 18 * S);
    assert_int_equal(turn.state, MS__PUSH_SEND);
    given.retry_after_s = UINT64_MAX;
    ms__push_answered(push, 18 * S, &given);
    assert_int_equal(turn_of(push, 18 * S).wait_ns, 3600 * S);
    ms__push_free(push);
}

static void patience_ends(void **state)
{
    (void)state;
    ms__push_options options = {.patience_ns = 10 * S};
    ms__push *push = push_of(&options);
    put_plan(path, "A");
    assert_ms_ok(ms__push_add(push, path, false, &err), err);
    refuse(push, 100 * S, 0, "connection refused");
    assert_int_equal(turn_of(push, 109 * S).state, MS__PUSH_SEND);
    ms__push_answer given = answer(0, "connection refused");
    ms__push_answered(push, 109 * S, &given);
    ms__push_turn turn = turn_of(push, 110 * S);
    assert_int_equal(turn.state, MS__PUSH_STOPPED);
    assert_non_null(strstr(turn.reason, "connection refused"));
    ms__push_free(push);
}

static void answers_of_something_else_are_not_believed(void **state)
{
    (void)state;
    static const char *const bodies[] = {"",
                                         "<html>",
                                         "[]",
                                         "{}",
                                         "{\"id\":\"r0\"}",
                                         "{\"id\":\"../x\",\"last_sequence\":0,\"last_step\":0}",
                                         "{\"id\":\"\",\"last_sequence\":0,\"last_step\":0}",
                                         "{\"id\":\"r0\",\"last_sequence\":-1,\"last_step\":0}"};
    put_plan(path, "A");
    ms__push *push = push_of(NULL);
    assert_ms_ok(ms__push_add(push, path, false, &err), err);
    uint64_t now_ns = S;
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        refuse(push, now_ns, 200, bodies[i]);
        ms__push_turn turn = turn_of(push, now_ns);
        assert_int_equal(turn.state, MS__PUSH_WAIT);
        now_ns += turn.wait_ns;
    }
    assert_news(push, "not a memscale-server's");
    assert_no_news(push);
    serve_all(push, now_ns);
    put_steps(path, 1, 3);
    refuse(push, now_ns, 200,
           "{\"last_sequence\":0,\"last_step\":0,\"counted\":true}"); /* moves nothing: no fast loop */
    assert_int_equal(turn_of(push, now_ns).state, MS__PUSH_WAIT);
    ms__push_free(push);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(some_refusals_end_everything),
        TEST(a_refused_run_is_told_and_the_next_one_sent),
        TEST(too_much_is_sent_in_smaller_pieces),
        TEST(a_server_that_finds_a_run_s_begin_too_long_gets_the_plan_without_the_graph),
        TEST(pauses_double_up_to_five_minutes_and_end_with_success),
        TEST(a_server_that_names_a_pause_gets_it),
        TEST(patience_ends),
        TEST(answers_of_something_else_are_not_believed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
