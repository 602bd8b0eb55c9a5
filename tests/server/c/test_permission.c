/* The permission function, exhaustively: every kind of caller, verb, role and scope. Where each route's verb leads is
 * test_permissions.py's. */
#include "auth/permission.h"
#include "test_common.h"

static const mss_id team = {"t0000000000000001"}, other = {"t0000000000000002"};

static mss_who someone(mss_who_kind kind, uint32_t scopes, bool is_operator)
{
    return (mss_who){.kind = kind, .scopes = scopes, .is_operator = is_operator, .token_team = team};
}

static void test_nobody_does_only_what_is_public(void **state)
{
    (void)state;
    mss_who who = someone(MSS_ANYONE, MSS_SCOPE_ALL, true);
    for (int verb = 0; verb < MSS_VERB_COUNT; verb++) {
        mss_object object = {team, MSS_OWNER};
        assert_int_equal(mss_permit(&who, (mss_verb)verb, &object), verb == MSS_MAY_PUBLIC ? 0 : 401);
    }
}

/* A higher role may all that a lower one may. */
static void test_roles_only_add(void **state)
{
    (void)state;
    mss_who who = someone(MSS_PERSON, 0, false);
    for (int verb = 0; verb < MSS_VERB_COUNT; verb++) {
        bool could = false;
        for (int role = MSS_VIEWER; role <= MSS_OWNER; role++) {
            mss_object object = {team, (mss_role)role};
            bool can = mss_permit(&who, (mss_verb)verb, &object) == 0;
            assert_true(can || !could);
            could = can;
        }
        assert_int_equal(could, verb != MSS_MAY_OPERATE);
    }
}

static void test_a_team_that_one_has_no_part_in_does_not_exist(void **state)
{
    (void)state;
    mss_who person = someone(MSS_PERSON, 0, true), program = someone(MSS_PROGRAM, MSS_SCOPE_ALL, true);
    mss_object no_member = {team, MSS_NO_MEMBER}, nothing = {{""}, MSS_NO_MEMBER}, elsewhere = {other, MSS_OWNER};
    for (int verb = MSS_MAY_RUN_READ; verb <= MSS_MAY_TOKEN_MANAGE; verb++) {
        assert_int_equal(mss_permit(&person, (mss_verb)verb, &no_member), 404);
        assert_int_equal(mss_permit(&person, (mss_verb)verb, &nothing), 404);
        assert_int_equal(mss_permit(&program, (mss_verb)verb, &elsewhere), 404);
    }
}

static void test_a_token_does_what_its_scopes_say(void **state)
{
    (void)state;
    static const struct {
        mss_verb verb;
        uint32_t scope;
    } needs[] = {
        {MSS_MAY_RUN_READ, MSS_SCOPE_RUNS_READ},
        {MSS_MAY_RUN_WRITE, MSS_SCOPE_RUNS_WRITE},
        {MSS_MAY_RUN_DELETE, MSS_SCOPE_ADMIN},
        {MSS_MAY_PLAN_MAKE, MSS_SCOPE_RUNS_READ},
        {MSS_MAY_TEAM_READ, MSS_SCOPE_RUNS_READ},
        {MSS_MAY_TEAM_MANAGE, MSS_SCOPE_ADMIN},
        {MSS_MAY_TEAM_OWN, 0},
        {MSS_MAY_TOKEN_MANAGE, 0},
        {MSS_MAY_SELF, 0},
    };
    mss_object object = {team, MSS_OWNER};
    for (size_t i = 0; i < sizeof needs / sizeof needs[0]; i++) {
        for (uint32_t scopes = 0; scopes <= MSS_SCOPE_ALL; scopes++) {
            mss_who who = someone(MSS_PROGRAM, scopes, true);
            int expected = (scopes & needs[i].scope) != 0 ? 0 : 403;
            assert_int_equal(mss_permit(&who, needs[i].verb, &object), expected);
        }
    }
}

static void test_names(void **state)
{
    (void)state;
    for (int role = MSS_VIEWER; role <= MSS_OWNER; role++) {
        assert_int_equal(mss_role_of(mss_role_name((mss_role)role)), role);
    }
    assert_int_equal(mss_role_of("none"), MSS_NO_MEMBER);
    assert_int_equal(mss_role_of(""), MSS_NO_MEMBER);
    char text[MSS_SCOPES_TEXT_BYTES];
    mss_scopes_text(MSS_SCOPE_ALL, text);
    assert_string_equal(text, "runs:read runs:write admin");
    assert_int_equal(mss_scope_of("admin"), MSS_SCOPE_ADMIN);
    assert_int_equal(mss_scope_of("all"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nobody_does_only_what_is_public),
        cmocka_unit_test(test_roles_only_add),
        cmocka_unit_test(test_a_team_that_one_has_no_part_in_does_not_exist),
        cmocka_unit_test(test_a_token_does_what_its_scopes_say),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
