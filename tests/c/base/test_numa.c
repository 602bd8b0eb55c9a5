/* NUMA nodes: their number, and requests for one. Most machines have one, node 0. */
#include <linux/mempolicy.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/os/map.h"
#include "base/os/numa.h"
#include "test_common.h"

/* Makes a tree in a new directory, with `text` in has_memory; returns its root. NULL: removes the tree, returns "". */
static const char *tree_with(const char *text)
{
    static char root[64];
    const char *const folders[] = {"", "/sys", "/sys/devices", "/sys/devices/system", "/sys/devices/system/node"};
    enum { FOLDERS = sizeof folders / sizeof folders[0] };
    char path[256];
    if (text == NULL) {
        snprintf(path, sizeof path, "%s%s/has_memory", root, folders[FOLDERS - 1]);
        unlink(path);
        for (int i = FOLDERS; i-- > 0;) {
            snprintf(path, sizeof path, "%s%s", root, folders[i]);
            assert_int_equal(rmdir(path), 0);
        }
        return "";
    }
    snprintf(root, sizeof root, "/tmp/memscale-numa-XXXXXX");
    assert_non_null(mkdtemp(root));
    for (int i = 1; i < FOLDERS; i++) {
        snprintf(path, sizeof path, "%s%s", root, folders[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    snprintf(path, sizeof path, "%s%s/has_memory", root, folders[FOLDERS - 1]);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    return root;
}

static void nodes_are_counted(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t count;
    } cases[] = {
        {"0\n", 1},    {"0-1\n", 2}, {"0,2-3\n", 3}, {"0-3,8-9,16\n", 7}, {"", 1},
        {"none\n", 1}, {"3-1\n", 1}, {"0-\n", 1},    {"0-4096\n", 1},     {"99999999999999999999999\n", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(ms__numa_node_count(tree_with(cases[i].text)), cases[i].count);
        tree_with(NULL);
    }
    assert_int_equal(ms__numa_node_count("/nowhere"), 1);
    assert_true(ms__numa_node_count("") >= 1);
}

static void a_node_is_preferred_or_the_wish_refused(void **state)
{
    (void)state;
    ms_error err = {0};
    void *map = NULL;
    int policy = -1, node = ms__numa_current_node();
    size_t bytes = 4 * ms__page_bytes();
    assert_ms_ok(ms__map(bytes, ms__page_bytes(), &map, &err), err);
    assert_false(ms__map_prefer_node(map, bytes, -1));
    assert_false(ms__map_prefer_node(map, bytes, 1 << 20));
    ms_fault_arm(MS_FAULT_MAP, 1, 0);
    assert_false(ms__map_prefer_node(map, bytes, node));
    ms_fault_disarm_all();
    bool is_preferred = ms__map_prefer_node(map, bytes, node);
    if (is_preferred) { /* containers often forbid it */
        unsigned long mask[16] = {0};
        assert_int_equal(syscall(SYS_get_mempolicy, &policy, mask, 1024UL, map, MPOL_F_ADDR), 0);
        assert_int_equal(policy, MPOL_PREFERRED);
        assert_true(mask[node / 64] == 1UL << node % 64);
    }
    memset(map, 1, bytes);
    ms__unmap(map, bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_are_counted),
        cmocka_unit_test(a_node_is_preferred_or_the_wish_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
