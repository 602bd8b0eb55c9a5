/* The map of 64-bit keys agrees with a plain array. */
#include "base/keymap.h"

#include "test_common.h"

/* Keys collide and are removed in every order. */
static void a_map_agrees_with_an_array(void **state)
{
    (void)state;
    enum { KEYS = 257, ROUNDS = 200000 };
    static uint64_t values[KEYS]; /* 0: absent */
    ms__keymap map = {0};
    uint64_t random = 12345;
    for (int i = 0; i < ROUNDS; i++) {
        random = random * 6364136223846793005ULL + 1442695040888963407ULL;
        size_t which = (size_t)(random >> 33) % KEYS;
        uint64_t key = which * 0x100000001ULL << 6;
        uint64_t found = 0;
        assert_int_equal(ms__keymap_get(&map, key, &found), values[which] != 0);
        assert_int_equal(found, values[which]);
        if (random & 1) {
            values[which] = random | 1;
            assert_int_equal(ms__keymap_put(&map, key, values[which]), MS_OK);
        } else {
            values[which] = 0;
            ms__keymap_remove(&map, key);
        }
    }
    ms__keymap_free(&map);
    ms__keymap_remove(&map, 1);
    assert_int_equal(map.count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_map_agrees_with_an_array),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
