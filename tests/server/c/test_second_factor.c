/* The second factor in the database, on both: set-up, codes that count once, recovery codes, sign-ins that wait, and a
 * database that fails. */
#include <time.h>

#include <liboath/oath.h>

#include "auth/second_factor.h"
#include "store/statements.h"
#include "test_database.h"

static const mss_id account = {"a0000000000000001"}, other = {"a0000000000000002"};

static void open_with_accounts(mss_sql **sql)
{
    ms_error err;
    open_new(sql);
    assert_ms_ok(mss_sql_migrate(*sql, &err), err);
    script(*sql, "INSERT INTO account VALUES ('a0000000000000001', 'one@x', 'n', 'h', 0, 0);"
                 "INSERT INTO account VALUES ('a0000000000000002', 'two@x', 'n', 'h', 0, 0)");
}

/* The code of the present step, or of one that lies before or after it. */
static const char *code_at(const mss_totp_secret *secret, int steps)
{
    static char code[7];
    assert_int_equal(
        oath_totp_generate((const char *)secret->bytes, sizeof secret->bytes, time(NULL) + steps * 30, 30, 0, 6, code),
        OATH_OK);
    return code;
}

static void begin(mss_sql *sql, mss_totp_secret *secret, bool expected)
{
    ms_error err;
    bool is_begun;
    assert_ms_ok(mss_second_factor_begin(sql, &account, secret, &is_begun, &err), err);
    assert_int_equal(is_begun, expected);
}

static bool confirm(mss_sql *sql, const char *code)
{
    ms_error err;
    bool is_right;
    assert_ms_ok(mss_second_factor_confirm(sql, &account, code, &is_right, &err), err);
    return is_right;
}

static bool is_on(mss_sql *sql, const mss_id *whose)
{
    ms_error err;
    bool on;
    assert_ms_ok(mss_second_factor_is_on(sql, whose, &on, &err), err);
    return on;
}

static mss_code_kind use(mss_sql *sql, const mss_id *whose, const char *code)
{
    ms_error err;
    mss_code_kind kind;
    assert_ms_ok(mss_second_factor_use(sql, whose, code, &kind, &err), err);
    return kind;
}

static void set_up(mss_sql *sql, mss_totp_secret *secret)
{
    begin(sql, secret, true);
    assert_true(confirm(sql, code_at(secret, 0)));
}

static void test_it_counts_from_its_confirmation_on(void **state)
{
    (void)state;
    mss_sql *sql;
    mss_totp_secret first, secret, refused;
    open_with_accounts(&sql);
    assert_false(confirm(sql, "000000")); /* nothing has begun */
    begin(sql, &first, true);
    begin(sql, &secret, true);
    assert_memory_not_equal(&first, &secret, sizeof first);
    assert_false(is_on(sql, &account));
    assert_int_equal(use(sql, &account, code_at(&secret, 0)), MSS_CODE_WRONG);
    assert_false(confirm(sql, code_at(&first, 0))); /* the newer set-up is the one */
    assert_false(confirm(sql, ""));
    assert_true(confirm(sql, code_at(&secret, 0)));
    assert_true(is_on(sql, &account));
    assert_false(is_on(sql, &other));
    begin(sql, &refused, false); /* and can't be replaced */
    assert_int_equal(use(sql, &account, code_at(&secret, 1)), MSS_CODE_OF_AUTHENTICATOR);
    assert_false(confirm(sql, code_at(&secret, 1)));
    close_and_remove(sql);
}

static void test_an_account_of_an_older_program_sets_it_up(void **state)
{
    (void)state;
    for (int version = 1; version < mss_sql_newest_version(); version++) {
        mss_sql *sql;
        ms_error err;
        mss_totp_secret secret;
        open_new(&sql);
        assert_ms_ok(mss_sql_migrate_to(sql, version, &err), err);
        script(sql, "INSERT INTO account VALUES ('a0000000000000001', 'one@x', 'n', 'h', 0, 0)");
        assert_ms_ok(mss_sql_migrate(sql, &err), err);
        assert_false(is_on(sql, &account));
        set_up(sql, &secret);
        assert_true(is_on(sql, &account));
        close_and_remove(sql);
    }
}

static void test_a_set_up_waits_an_hour(void **state)
{
    (void)state;
    mss_sql *sql;
    ms_error err;
    mss_totp_secret secret;
    bool has_begun;
    open_with_accounts(&sql);
    begin(sql, &secret, true);
    assert_ms_ok(mss_second_factor_has_begun(sql, &account, &has_begun, &err), err);
    assert_true(has_begun);
    script(sql, "UPDATE second_factor SET started_at = started_at - 3600000");
    assert_false(confirm(sql, code_at(&secret, 0)));
    assert_ms_ok(mss_second_factor_has_begun(sql, &account, &has_begun, &err), err);
    assert_false(has_begun);
    bool is_begun;
    int64_t rows = -1;
    assert_ms_ok(mss_second_factor_begin(sql, &other, &secret, &is_begun, &err), err);
    assert_ms_ok(
        mss_sql_number(sql, MSS_SECOND_FACTOR_SETUP, MSS_WITH(MSS_TEXT(account.text), MSS_INT(0)), &rows, &err), err);
    assert_int_equal(rows, 0); /* deleted */
    close_and_remove(sql);
}

static void test_a_code_counts_once(void **state)
{
    (void)state;
    mss_sql *sql;
    mss_totp_secret secret;
    char code[7];
    open_with_accounts(&sql);
    begin(sql, &secret, true);
    strcpy(code, code_at(&secret, 0));
    assert_true(confirm(sql, code));
    assert_int_equal(use(sql, &account, code), MSS_CODE_WRONG);
    strcpy(code, code_at(&secret, 1));
    assert_int_equal(use(sql, &other, code), MSS_CODE_WRONG); /* of someone else */
    assert_int_equal(use(sql, &account, code), MSS_CODE_OF_AUTHENTICATOR);
    assert_int_equal(use(sql, &account, code), MSS_CODE_WRONG);
    assert_int_equal(use(sql, &account, code_at(&secret, 0)), MSS_CODE_WRONG); /* an older one */
    close_and_remove(sql);
}

/* Two that have read the same last step: the statement lets one of them raise it. */
static void test_of_two_at_once_one_raises_the_step(void **state)
{
    (void)state;
    mss_sql *sql, *second;
    ms_error err;
    int64_t changed[2] = {-1, -1};
    mss_totp_secret secret;
    open_with_accounts(&sql);
    set_up(sql, &secret);
    assert_ms_ok(mss_sql_open(path, MSS_SQL_WRITE, &second, &err), err);
    for (int i = 0; i < 2; i++) {
        assert_ms_ok(mss_sql_run(i == 0 ? sql : second, MSS_SECOND_FACTOR_STEP,
                                 MSS_WITH(MSS_INT(1000000000), MSS_TEXT(account.text)), &changed[i], &err),
                     err);
    }
    assert_int_equal(changed[0], 1);
    assert_int_equal(changed[1], 0);
    mss_sql_close(second);
    close_and_remove(sql);
}

static void test_recovery_codes_count_once_and_until_there_are_new_ones(void **state)
{
    (void)state;
    mss_sql *sql;
    ms_error err;
    mss_totp_secret secret;
    mss_short_code codes[MSS_RECOVERY_CODES], newer[MSS_RECOVERY_CODES];
    open_with_accounts(&sql);
    set_up(sql, &secret);
    assert_ms_ok(mss_recovery_codes_make(sql, &account, codes, &err), err);
    assert_int_equal(use(sql, &other, codes[0].text), MSS_CODE_WRONG);
    for (int i = 0; i < MSS_RECOVERY_CODES - 1; i++) {
        assert_int_equal(use(sql, &account, codes[i].text), MSS_CODE_OF_RECOVERY);
        assert_int_equal(use(sql, &account, codes[i].text), MSS_CODE_WRONG);
    }
    assert_ms_ok(mss_recovery_codes_make(sql, &account, newer, &err), err);
    assert_int_equal(use(sql, &account, codes[MSS_RECOVERY_CODES - 1].text), MSS_CODE_WRONG);
    json_t *shown = mss_sql_object(sql, MSS_SECOND_FACTOR_SHOW, MSS_WITH(MSS_TEXT(account.text)), &err);
    assert_int_equal(json_integer_value(json_object_get(shown, "recovery_codes_left")), MSS_RECOVERY_CODES);
    json_decref(shown);
    assert_ms_ok(mss_second_factor_remove(sql, &account, &err), err);
    assert_int_equal(use(sql, &account, newer[0].text), MSS_CODE_WRONG);
    assert_false(is_on(sql, &account));
    close_and_remove(sql);
}

static mss_pending try_pending(mss_sql *sql, const char *secret)
{
    ms_error err;
    mss_pending pending;
    assert_ms_ok(mss_pending_try(sql, secret, &pending, &err), err);
    return pending;
}

static void test_a_sign_in_waits_for_so_many_tries_and_so_long(void **state)
{
    (void)state;
    mss_sql *sql;
    ms_error err;
    char secret[MSS_SECRET_BYTES], late[MSS_SECRET_BYTES];
    open_with_accounts(&sql);
    assert_string_equal(try_pending(sql, "nothing").account.text, "");
    assert_ms_ok(mss_pending_start(sql, &account, late, &err), err);
    script(sql, "UPDATE pending_sign_in SET expires_at = expires_at - 300000");
    assert_string_equal(try_pending(sql, late).account.text, "");
    assert_ms_ok(mss_pending_start(sql, &account, secret, &err), err);
    for (int i = MSS_PENDING_TRIES - 1; i >= 0; i--) {
        mss_pending pending = try_pending(sql, secret);
        assert_string_equal(pending.account.text, account.text);
        assert_string_equal(pending.email, "one@x");
        assert_int_equal(pending.tries_left, i);
    }
    assert_string_equal(try_pending(sql, secret).account.text, "");
    json_t *rows = mss_sql_objects(sql, MSS_PENDING_LIST, MSS_WITH(MSS_TEXT(account.text)), &err);
    assert_int_equal(json_array_size(rows), 1); /* the one that came too late is gone */
    json_decref(rows);
    close_and_remove(sql);
}

static void test_a_sign_in_that_waits_can_be_ended(void **state)
{
    (void)state;
    mss_sql *sql;
    ms_error err;
    char one[MSS_SECRET_BYTES], two[MSS_SECRET_BYTES], three[MSS_SECRET_BYTES];
    open_with_accounts(&sql);
    assert_ms_ok(mss_pending_start(sql, &account, one, &err), err);
    assert_ms_ok(mss_pending_start(sql, &account, two, &err), err);
    assert_ms_ok(mss_pending_start(sql, &other, three, &err), err);
    assert_ms_ok(mss_pending_end(sql, one, &err), err);
    assert_string_equal(try_pending(sql, one).account.text, "");
    assert_ms_ok(mss_second_factor_remove(sql, &account, &err), err); /* all of the account's */
    assert_string_equal(try_pending(sql, two).account.text, "");
    assert_string_equal(try_pending(sql, three).account.text, other.text);
    close_and_remove(sql);
}

static void test_a_secret_of_another_length_is_told(void **state)
{
    (void)state;
    mss_sql *sql;
    ms_error err;
    mss_totp_secret secret;
    mss_short_code codes[MSS_RECOVERY_CODES];
    mss_code_kind kind;
    open_with_accounts(&sql);
    set_up(sql, &secret);
    assert_ms_ok(mss_recovery_codes_make(sql, &account, codes, &err), err);
    script(sql, "UPDATE second_factor SET secret = (SELECT hash FROM recovery_code LIMIT 1)");
    assert_ms_fails(mss_second_factor_use(sql, &account, "000000", &kind, &err), MS_EFORMAT, err, "32 bytes");
    assert_int_equal(kind, MSS_CODE_WRONG);
    close_and_remove(sql);
}

/* Whatever statement fails, the caller is told, and nothing is taken for right. */
static void test_a_database_that_fails_is_told(void **state)
{
    (void)state;
    mss_sql *sql;
    ms_error err;
    mss_totp_secret secret;
    mss_short_code codes[MSS_RECOVERY_CODES];
    mss_pending pending;
    char text[MSS_SECRET_BYTES];
    bool flag = true;
    mss_code_kind kind = MSS_CODE_OF_RECOVERY;
    open_new(&sql);
    assert_ms_ok(mss_sql_migrate_to(sql, 2, &err), err); /* the tables are missing */
    assert_int_equal(mss_second_factor_begin(sql, &account, &secret, &flag, &err), MS_ESYSTEM);
    assert_false(flag);
    flag = true;
    assert_int_equal(mss_second_factor_has_begun(sql, &account, &flag, &err), MS_ESYSTEM);
    assert_false(flag);
    flag = true;
    assert_int_equal(mss_second_factor_confirm(sql, &account, "000000", &flag, &err), MS_ESYSTEM);
    assert_false(flag);
    flag = true;
    assert_int_equal(mss_second_factor_is_on(sql, &account, &flag, &err), MS_ESYSTEM);
    assert_false(flag);
    assert_int_equal(mss_second_factor_use(sql, &account, "000000", &kind, &err), MS_ESYSTEM);
    assert_int_equal(kind, MSS_CODE_WRONG);
    assert_int_equal(mss_recovery_codes_make(sql, &account, codes, &err), MS_ESYSTEM);
    assert_int_equal(mss_second_factor_remove(sql, &account, &err), MS_ESYSTEM);
    assert_int_equal(mss_pending_start(sql, &account, text, &err), MS_ESYSTEM);
    assert_int_equal(mss_pending_try(sql, text, &pending, &err), MS_ESYSTEM);
    assert_false(mss_id_is(&pending.account));
    assert_int_equal(mss_pending_end(sql, text, &err), MS_ESYSTEM);
    close_and_remove(sql);
}

int main(void)
{
    ms_error err;
    if (mss_secret_start(&err) != MS_OK || mss_totp_start(&err) != MS_OK) {
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_counts_from_its_confirmation_on),
        cmocka_unit_test(test_an_account_of_an_older_program_sets_it_up),
        cmocka_unit_test(test_a_set_up_waits_an_hour),
        cmocka_unit_test(test_a_code_counts_once),
        cmocka_unit_test(test_of_two_at_once_one_raises_the_step),
        cmocka_unit_test(test_recovery_codes_count_once_and_until_there_are_new_ones),
        cmocka_unit_test(test_a_sign_in_waits_for_so_many_tries_and_so_long),
        cmocka_unit_test(test_a_sign_in_that_waits_can_be_ended),
        cmocka_unit_test(test_a_secret_of_another_length_is_told),
        cmocka_unit_test(test_a_database_that_fails_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
