/* The effective limit of control groups on a process, read from small trees like those of containers, systemd and
 * bare machines. */
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/cgroup.h"
#include "base/os/file.h"
#include "base/os/procfs.h"
#include "test_common.h"

static char root[64];

static int make_root(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/memscale-cgroup-XXXXXX");
    return mkdtemp(root) == NULL;
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    return remove(path);
}

static int remove_root(void **state)
{
    (void)state;
    ms_fault_disarm_all();
    return nftw(root, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static void put(const char *path, const char *text)
{
    char full[512];
    ms_error err;
    snprintf(full, sizeof full, "%s%s", root, path);
    char *slash = strrchr(full, '/');
    *slash = '\0';
    assert_ms_ok(ms__directory_make(full, &err), err);
    *slash = '/';
    assert_ms_ok(ms__file_write_text(full, text, strlen(text), &err), err);
}

static ms__cgroup_memory read_root(void)
{
    ms__cgroup_memory found;
    ms__cgroup_memory_read(root, &found);
    return found;
}

static void assert_no_limit(void)
{
    ms__cgroup_memory found = read_root();
    assert_int_equal(found.limit_bytes, UINT64_MAX);
    assert_int_equal(found.version, 0);
    assert_string_equal(found.directory, "");
    assert_string_equal(found.limit_file, "");
}

static void a_machine_without_groups_has_no_limit(void **state)
{
    (void)state;
    assert_no_limit();
    put("/proc/self/cgroup", "");
    assert_no_limit();
    put("/proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n");
    assert_no_limit();
    put("/proc/self/cgroup", "0::/user.slice\n");
    assert_no_limit();
}

static const char mount_v2[] = "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"
                               "31 22 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";

static void v2_takes_the_group_of_the_process(void **state)
{
    (void)state;
    put("/proc/self/mountinfo", mount_v2);
    put("/proc/self/cgroup", "0::/user.slice/job\n");
    put("/sys/fs/cgroup/user.slice/job/memory.max", "4500000000\n");
    put("/sys/fs/cgroup/user.slice/job/memory.current", "123456\n");
    put("/sys/fs/cgroup/user.slice/job/memory.stat", "anon 5\nfile 7000\nfile_mapped 1\n");
    put("/sys/fs/cgroup/user.slice/memory.max", "max\n");
    ms__cgroup_memory found = read_root();
    assert_int_equal(found.limit_bytes, 4500000000);
    assert_int_equal(found.usage_bytes, 123456);
    assert_int_equal(found.cache_bytes, 7000);
    assert_int_equal(found.version, 2);
    assert_non_null(strstr(found.directory, "/sys/fs/cgroup/user.slice/job"));
}

static void room_is_what_the_limit_or_the_machine_leaves(void **state)
{
    (void)state;
    assert_int_equal(ms__memory_room_bytes(root), 0); /* neither file exists */
    put("/proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 5000 kB\n");
    assert_int_equal(ms__memory_room_bytes(root), 5000 * 1024);
    put("/proc/self/mountinfo", mount_v2);
    put("/proc/self/cgroup", "0::/job\n");
    put("/sys/fs/cgroup/job/memory.max", "4000000\n");
    put("/sys/fs/cgroup/job/memory.current", "3000000\n");
    put("/sys/fs/cgroup/job/memory.stat", "anon 5\nfile 500000\n");
    assert_int_equal(ms__memory_room_bytes(root), 1500000); /* the page cache counts as free */
    put("/sys/fs/cgroup/job/memory.current", "5000000\n");
    assert_int_equal(ms__memory_room_bytes(root), 0);
    put("/sys/fs/cgroup/job/memory.max", "400000000\n");
    assert_int_equal(ms__memory_room_bytes(root), 5000 * 1024);
}

static void a_parent_binds_as_well(void **state)
{
    (void)state;
    put("/proc/self/mountinfo", mount_v2);
    put("/proc/self/cgroup", "0::/a/b/c\n");
    put("/sys/fs/cgroup/a/b/c/memory.max", "3000\n");
    put("/sys/fs/cgroup/a/memory.max", "2000\n");
    put("/sys/fs/cgroup/a/memory.current", "1500\n");
    ms__cgroup_memory found = read_root();
    assert_int_equal(found.limit_bytes, 2000);
    assert_int_equal(found.usage_bytes, 1500);
    put("/sys/fs/cgroup/memory.max", "1000\n"); /* the topmost group that a container sees */
    assert_int_equal(read_root().limit_bytes, 1000);
}

static void the_high_mark_of_v2_binds_too(void **state)
{
    (void)state;
    put("/proc/self/mountinfo", mount_v2);
    put("/proc/self/cgroup", "0::/job\n");
    put("/sys/fs/cgroup/job/memory.max", "5000\n");
    put("/sys/fs/cgroup/job/memory.high", "4000\n");
    assert_int_equal(read_root().limit_bytes, 4000);
    assert_string_equal(read_root().limit_file, "memory.high");
}

static const char mount_v1[] = "31 22 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
                               "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
                               "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
                               "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

static void v1_takes_the_memory_hierarchy(void **state)
{
    (void)state;
    put("/proc/self/mountinfo", mount_v1);
    put("/proc/self/cgroup", "8:pids:/x\n4:memory:/jobs/one\n2:cpu,cpuacct:/jobs\n0::/\n");
    put("/sys/fs/cgroup/memory/jobs/one/memory.limit_in_bytes", "4500000000\n");
    put("/sys/fs/cgroup/memory/jobs/one/memory.usage_in_bytes", "99\n");
    put("/sys/fs/cgroup/memory/jobs/one/memory.stat", "cache 1\ntotal_cache 42\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/cpu,cpuacct/jobs/memory.limit_in_bytes", "1\n");
    ms__cgroup_memory found = read_root();
    assert_int_equal(found.limit_bytes, 4500000000);
    assert_int_equal(found.usage_bytes, 99);
    assert_int_equal(found.cache_bytes, 42);
    assert_int_equal(found.version, 1);
}

static void v1_parents_bind_only_with_hierarchy(void **state)
{
    (void)state;
    put("/proc/self/mountinfo", mount_v1);
    put("/proc/self/cgroup", "4:memory:/jobs/one\n");
    put("/sys/fs/cgroup/memory/jobs/one/memory.limit_in_bytes", "5000\n");
    put("/sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "3000\n");
    put("/sys/fs/cgroup/memory/jobs/memory.use_hierarchy", "0\n");
    assert_int_equal(read_root().limit_bytes, 5000);
    put("/sys/fs/cgroup/memory/jobs/memory.use_hierarchy", "1\n");
    assert_int_equal(read_root().limit_bytes, 3000);
}

static void huge_v1_numbers_are_no_limit(void **state)
{
    (void)state;
    put("/proc/self/mountinfo", mount_v1);
    put("/proc/self/cgroup", "4:memory:/\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    assert_no_limit();
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "18446744073709551615\n");
    assert_no_limit();
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "garbage\n");
    assert_no_limit();
}

static void the_smaller_of_both_versions_binds(void **state)
{
    (void)state;
    put("/proc/self/mountinfo", mount_v1);
    put("/proc/self/cgroup", "4:memory:/one\n0::/two\n");
    put("/sys/fs/cgroup/memory/one/memory.limit_in_bytes", "5000\n");
    put("/sys/fs/cgroup/unified/two/memory.max", "4000\n");
    assert_int_equal(read_root().limit_bytes, 4000);
    put("/sys/fs/cgroup/memory/one/memory.limit_in_bytes", "3000\n");
    assert_int_equal(read_root().limit_bytes, 3000);
}

static void a_container_sees_its_group_at_the_mount(void **state)
{
    (void)state;
    put("/proc/self/mountinfo", "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
    put("/proc/self/cgroup", "4:memory:/docker/abc\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "7000\n");
    assert_int_equal(read_root().limit_bytes, 7000);
    put("/proc/self/cgroup", "4:memory:/docker/abc/inner\n");
    put("/sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "6000\n");
    assert_int_equal(read_root().limit_bytes, 6000);
    put("/proc/self/cgroup", "4:memory:/docker/abcdef\n"); /* not below the mount */
    assert_int_equal(read_root().limit_bytes, 7000);
    put("/proc/self/cgroup", "4:memory:/../other\n");
    assert_int_equal(read_root().limit_bytes, 7000);
}

static void a_group_outside_the_visible_tree_is_seen_as_its_top(void **state)
{
    (void)state;
    put("/proc/self/mountinfo", mount_v2);
    put("/proc/self/cgroup", "0::/../other\n");
    put("/sys/fs/cgroup/memory.max", "7000\n");
    put("/sys/fs/other/memory.max", "10\n");
    put("/sys/fs/memory.max", "20\n");
    assert_int_equal(read_root().limit_bytes, 7000);
}

static void mount_points_with_spaces_are_found(void **state)
{
    (void)state;
    put("/proc/self/mountinfo", "31 22 0:26 / /my\\040groups rw - cgroup2 none rw\n");
    put("/proc/self/cgroup", "0::/job\n");
    put("/my groups/job/memory.max", "5000\n");
    assert_int_equal(read_root().limit_bytes, 5000);
}

static void broken_files_give_no_limit(void **state)
{
    (void)state;
    static const char *const mountinfos[] = {
        "\n\n", "- - -\n", "1 2 3 - cgroup2\n", "31 22 0:26 / - cgroup2 x rw\n", " - ", "1\n2\n",
    };
    put("/proc/self/cgroup", "no colons\n0:only one\n0::\n:::\n");
    for (size_t i = 0; i < sizeof mountinfos / sizeof mountinfos[0]; i++) {
        put("/proc/self/mountinfo", mountinfos[i]);
        assert_no_limit();
    }
}

static void unreadable_files_give_no_limit(void **state)
{
    (void)state;
    put("/proc/self/mountinfo", mount_v2);
    put("/proc/self/cgroup", "0::/job\n");
    put("/sys/fs/cgroup/job/memory.max", "5000\n");
    for (uint64_t nth = 1; nth <= 3; nth++) {
        ms_fault_arm(MS_FAULT_OPEN, nth, 13);
        assert_no_limit();
    }
    ms_fault_disarm_all();
    assert_int_equal(read_root().limit_bytes, 5000);
}

static void this_machine_can_be_read(void **state)
{
    (void)state;
    ms__cgroup_memory found;
    ms__cgroup_memory_read("", &found);
    assert_true(found.limit_bytes > 0);
    assert_true((found.limit_bytes == UINT64_MAX) == (found.version == 0));
}

static void meminfo_is_read_in_bytes(void **state)
{
    (void)state;
    ms_error err;
    ms__machine_memory memory;
    put("/proc/meminfo", "MemTotal:       24000000 kB\nMemFree: 5 kB\nMemAvailable:   1000 kB\n");
    assert_ms_ok(ms__machine_memory_read(root, &memory, &err), err);
    assert_int_equal(memory.total_bytes, UINT64_C(24576000000));
    assert_int_equal(memory.available_bytes, 1024000);
    put("/proc/meminfo", "MemTotal: 24000000 kB\n");
    assert_ms_fails(ms__machine_memory_read(root, &memory, &err), MS_ESYSTEM, err, "/proc/meminfo");
    assert_ms_ok(ms__machine_memory_read("", &memory, &err), err);
    assert_true(memory.total_bytes >= memory.available_bytes);
}

static void cpu_quotas_of_v2_round_up_and_the_tightest_binds(void **state)
{
    (void)state;
    assert_int_equal(ms__cgroup_cpu_quota(root), 0);
    put("/proc/self/mountinfo", mount_v2);
    put("/proc/self/cgroup", "0::/a/b\n");
    put("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    assert_int_equal(ms__cgroup_cpu_quota(root), 0);
    put("/sys/fs/cgroup/a/b/cpu.max", "350000 100000\n");
    assert_int_equal(ms__cgroup_cpu_quota(root), 4);
    put("/sys/fs/cgroup/a/cpu.max", "50000 100000\n");
    assert_int_equal(ms__cgroup_cpu_quota(root), 1);
}

static void cpu_quotas_of_v1_come_from_the_cpu_hierarchy(void **state)
{
    (void)state;
    put("/proc/self/mountinfo", "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
                                "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
    put("/proc/self/cgroup", "4:memory:/other\n1:cpu,cpuacct:/job\n");
    put("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
    assert_int_equal(ms__cgroup_cpu_quota(root), 0);
    put("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "200000\n");
    assert_int_equal(ms__cgroup_cpu_quota(root), 2);
}

#define WITH_ROOT(test) cmocka_unit_test_setup_teardown(test, make_root, remove_root)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_ROOT(a_machine_without_groups_has_no_limit),
        WITH_ROOT(v2_takes_the_group_of_the_process),
        WITH_ROOT(room_is_what_the_limit_or_the_machine_leaves),
        WITH_ROOT(a_parent_binds_as_well),
        WITH_ROOT(the_high_mark_of_v2_binds_too),
        WITH_ROOT(v1_takes_the_memory_hierarchy),
        WITH_ROOT(v1_parents_bind_only_with_hierarchy),
        WITH_ROOT(huge_v1_numbers_are_no_limit),
        WITH_ROOT(the_smaller_of_both_versions_binds),
        WITH_ROOT(a_container_sees_its_group_at_the_mount),
        WITH_ROOT(a_group_outside_the_visible_tree_is_seen_as_its_top),
        WITH_ROOT(mount_points_with_spaces_are_found),
        WITH_ROOT(broken_files_give_no_limit),
        WITH_ROOT(unreadable_files_give_no_limit),
        WITH_ROOT(cpu_quotas_of_v2_round_up_and_the_tightest_binds),
        WITH_ROOT(cpu_quotas_of_v1_come_from_the_cpu_hierarchy),
        cmocka_unit_test(this_machine_can_be_read),
        WITH_ROOT(meminfo_is_read_in_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
