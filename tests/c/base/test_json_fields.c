/*
 * Tables of fields: a struct is read back as it was written, and every field is required and bounded.
 */
#include "base/json_fields.h"
#include "test_common.h"

typedef struct pet {
    uint64_t bytes;
    uint32_t legs, kind;
    bool tame;
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
};
enum { FIELDS = sizeof fields / sizeof fields[0] };

static int read_pet(const char *text, pet *out)
{
    ms__json_at root;
    json_t *tree;
    int rc = ms__json_parse(text, strlen(text), "pet", &tree, &root, NULL);
    assert_int_equal(rc, MS_OK);
    rc = ms__json_read_fields(&root, fields, FIELDS, out);
    if (rc == MS_OK) {
        rc = ms__json_only_count(&root, FIELDS);
    }
    json_decref(tree);
    return rc;
}

static void a_struct_is_read_back_as_written(void **state)
{
    (void)state;
    const pet written = {.bytes = UINT64_MAX, .legs = 4, .kind = 1, .tame = true};
    ms__json_writer writer = {0};
    json_t *root = ms__json_new(&writer);
    char *text;
    pet out = {0};
    ms__json_put_fields(&writer, root, fields, FIELDS, &written);
    assert_int_equal(ms__json_finish(&writer, root, "pet", &text, NULL), MS_OK);
    assert_int_equal(read_pet(text, &out), MS_OK);
    assert_true(out.bytes == INT64_MAX && out.legs == 4 && out.kind == 1 && out.tame);
    ms_free(text);
}

static void every_field_is_required_and_bounded(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "{\"legs\": 4, \"kind\": \"cat\", \"tame\": true}",
        "{\"bytes\": -1, \"legs\": 4, \"kind\": \"cat\", \"tame\": true}",
        "{\"bytes\": 1, \"legs\": 5, \"kind\": \"cat\", \"tame\": true}",
        "{\"bytes\": 1, \"legs\": 1, \"kind\": \"cat\", \"tame\": true}",
        "{\"bytes\": 1, \"legs\": 4, \"kind\": \"cow\", \"tame\": true}",
        "{\"bytes\": 1, \"legs\": 4, \"kind\": \"cat\", \"tame\": 1}",
        "{\"bytes\": 1, \"legs\": 4, \"kind\": \"cat\", \"tame\": true, \"name\": \"Tom\"}",
    };
    pet out;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(read_pet(bad[i], &out), MS_EFORMAT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_struct_is_read_back_as_written),
        cmocka_unit_test(every_field_is_required_and_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
