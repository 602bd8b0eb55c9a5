/*
 * Tables of fields: a struct is read back as it was written, and fields are required and bounded.
 */
#include "base/json_fields.h"
#include "test_common.h"

typedef struct pet {
    uint64_t bytes, fleas, weight_most;
    uint32_t legs, kind;
    bool tame, deaf;
    char name[6];
} pet;

static const char *kind_word(uint32_t kind)
{
    static const char *const words[] = {"cat", "dog"};
    return words[kind];
}

static const ms__json_field fields[] = {
    MS__FIELD(pet, bytes, U64),
    MS__FIELD_NUMBER(pet, legs, U32, 2, 4),
    MS__FIELD_WORDS(pet, kind, 2, kind_word),
    MS__FIELD(pet, tame, BOOL),
    MS__FIELD(pet, fleas, IF_ANY),
    MS__FIELD(pet, deaf, IF_SET),
    MS__FIELD(pet, weight_most, LIMIT),
    MS__FIELD_CHARS(pet, name),
};
enum { FIELDS = sizeof fields / sizeof fields[0] };

static int read_pet(const char *text, pet *out)
{
    ms__json_at root;
    json_t *tree;
    int rc = ms__json_parse(text, strlen(text), "pet", &tree, &root, NULL);
    assert_int_equal(rc, MS_OK);
    rc = ms__json_read_fields(&root, fields, FIELDS, out);
    json_decref(tree);
    return rc;
}

static char *write_pet(const pet *written)
{
    ms__json_writer writer = {0};
    json_t *root = ms__json_new(&writer);
    char *text;
    ms__json_put_fields(&writer, root, fields, FIELDS, written);
    assert_int_equal(ms__json_finish(&writer, root, "pet", &text, NULL), MS_OK);
    return text;
}

static void a_struct_is_read_back_as_written(void **state)
{
    (void)state;
    pet written = {.bytes = UINT64_MAX,
                   .weight_most = 7,
                   .fleas = 3,
                   .legs = 4,
                   .kind = 1,
                   .tame = true,
                   .deaf = true,
                   .name = "Tom"};
    pet out = {0};
    char *text = write_pet(&written);
    assert_int_equal(read_pet(text, &out), MS_OK);
    assert_true(out.bytes == INT64_MAX && out.weight_most == 7 && out.fleas == 3);
    assert_true(out.legs == 4 && out.kind == 1 && out.tame && out.deaf);
    assert_string_equal(out.name, "Tom");
    ms_free(text);
}

static void no_limit_is_null_and_optional_zeros_are_not_written(void **state)
{
    (void)state;
    pet written = {.weight_most = UINT64_MAX, .legs = 2}, out = {.fleas = 1, .deaf = true};
    char *text = write_pet(&written);
    assert_non_null(strstr(text, "\"weight_most\": null"));
    assert_true(strstr(text, "fleas") == NULL && strstr(text, "deaf") == NULL);
    assert_int_equal(read_pet(text, &out), MS_OK);
    assert_true(out.weight_most == UINT64_MAX && out.fleas == 0 && !out.deaf);
    ms_free(text);
}

static void every_field_is_required_and_bounded(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
    } bad[] = {
        {"\"bytes\": 1,", ""},
        {"\"bytes\": 1", "\"bytes\": -1"},
        {"\"legs\": 4", "\"legs\": 5"},
        {"\"legs\": 4", "\"legs\": 1"},
        {"\"cat\"", "\"cow\""},
        {"true", "1"},
        {"null", "false"},
        {"\"weight_most\": null,", ""},
        {"\"Tom\"", "\"Thomas\""},
        {"\"Tom\"", "null"},
    };
    static const char sound[] = "{\"bytes\": 1, \"legs\": 4, \"kind\": \"cat\", \"tame\": true, "
                                "\"weight_most\": null, \"name\": \"Tom\"}";
    pet out;
    assert_int_equal(read_pet(sound, &out), MS_OK);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[2 * sizeof sound];
        const char *at = strstr(sound, bad[i].from);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - sound), sound, bad[i].to, at + strlen(bad[i].from));
        assert_int_equal(read_pet(text, &out), MS_EFORMAT);
    }
}

static void members_beyond_the_fields_are_refused(void **state)
{
    (void)state;
    static const char *const none[] = {NULL}, *const owner[] = {"owner", NULL};
    static const char text[] = "{\"legs\": 4, \"owner\": 1}";
    const ms__json_field *legs = &fields[1];
    pet out = {0};
    ms__json_at root;
    json_t *tree;
    assert_int_equal(ms__json_parse(text, strlen(text), "pet", &tree, &root, NULL), MS_OK);
    assert_int_equal(ms__json_read_only_fields(&root, legs, 1, none, &out), MS_EFORMAT);
    assert_int_equal(ms__json_read_only_fields(&root, legs, 1, owner, &out), MS_OK);
    assert_int_equal(out.legs, 4);
    assert_int_equal(ms__json_only_count(&root, 2), MS_OK);
    assert_int_equal(ms__json_only_count(&root, 1), MS_EFORMAT);
    json_decref(tree);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_struct_is_read_back_as_written),
        cmocka_unit_test(no_limit_is_null_and_optional_zeros_are_not_written),
        cmocka_unit_test(every_field_is_required_and_bounded),
        cmocka_unit_test(members_beyond_the_fields_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
