/*
 * The table of techniques: names and columns identify a technique, and names agree with columns.
 */
#include "memscale/technique.h"
#include "test_common.h"

static void names_read_back(void **state)
{
    (void)state;
    ms_technique technique;
    for (int i = 0; i < MS_TECHNIQUE_COUNT; i++) {
        assert_int_equal(ms_technique_parse(ms_technique_name((ms_technique)i), &technique), MS_OK);
        assert_int_equal(technique, i);
    }
    assert_int_equal(ms_technique_parse("teleport", &technique), MS_EINVAL);
    assert_string_equal(ms_technique_name((ms_technique)99), "unknown");
    assert_string_equal(ms_technique_name(MS_TECHNIQUE_COUNT), "unknown");
    assert_false(ms_technique_moves(MS_TECHNIQUE_COUNT));
}

static void every_row_has_a_text_and_a_colour(void **state)
{
    (void)state;
    for (int i = 0; i < MS_TECHNIQUE_COUNT; i++) {
        const ms_technique_row *row = ms_technique_of((ms_technique)i);
        assert_true(strlen(row->text) > 10);
        assert_int_equal(strlen(row->colour), 7);
        assert_int_equal(row->colour[0], '#');
    }
}

static void columns_name_one_technique(void **state)
{
    (void)state;
    for (int i = 0; i < MS_TECHNIQUE_COUNT; i++) {
        assert_int_equal(ms_technique_with(ms_technique_of((ms_technique)i)), i);
    }
    ms_technique_row none = *ms_technique_of(MS_TECHNIQUE_RECOMPUTE_JOINED);
    none.nesting = 2;
    assert_int_equal(ms_technique_with(&none), MS_TECHNIQUE_COUNT);
}

/* The words of a name determine its columns. */
static void names_agree_with_columns(void **state)
{
    (void)state;
    for (int i = 0; i < MS_TECHNIQUE_COUNT; i++) {
        const ms_technique_row *row = ms_technique_of((ms_technique)i);
        bool offloads = strstr(row->name, "offload") != NULL;
        assert_int_equal(ms_technique_moves((ms_technique)i), offloads);
        assert_int_equal(row->replays, strncmp(row->name, "recompute", 9) == 0);
        assert_int_equal(row->set > 0, strncmp(row->name, "selective", 9) == 0);
        assert_int_equal(row->rest == MS_REST_HOST, strstr(row->name, "_host") != NULL);
        assert_int_equal(row->rest == MS_REST_DISK, strstr(row->name, "_disk") != NULL);
        bool chained = strstr(row->name, "joined") || strstr(row->name, "segment") || strstr(row->name, "nested");
        assert_int_equal(ms_technique_is_chained((ms_technique)i), chained);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_read_back),
        cmocka_unit_test(every_row_has_a_text_and_a_colour),
        cmocka_unit_test(columns_name_one_technique),
        cmocka_unit_test(names_agree_with_columns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
