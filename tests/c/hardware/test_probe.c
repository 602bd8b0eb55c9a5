/* The probe of this machine: directories for the disk tier, rates that are measured once and kept, and refusals of
 * the system. */
#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/file.h"
#include "hardware/probe.h"
#include "hardware/rates.h"
#include "memscale/hardware.h"
#include "test_common.h"

static char home[64];
static ms_hardware machine;
static ms_hardware again;

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    return remove(path);
}

/* A private home below the tests' working directory, which is on a disk. */
static int enter_home(void **state)
{
    (void)state;
    snprintf(home, sizeof home, "probe-test-XXXXXX");
    char full[PATH_MAX];
    if (mkdtemp(home) == NULL || realpath(home, full) == NULL) {
        return -1;
    }
    setenv("HOME", full, 1);
    setenv("MEMSCALE_LIBCUDA", "/nonexistent/libcuda.so.1", 1);
    unsetenv("XDG_CACHE_HOME");
    return 0;
}

static int leave_home(void **state)
{
    (void)state;
    ms_fault_disarm_all();
    return nftw(home, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static char *in_home(const char *relative)
{
    static char paths[4][PATH_MAX];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, PATH_MAX, "%s/%s", getenv("HOME"), relative);
    return path;
}

static bool exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0;
}

/* True if /dev/shm is a tmpfs, as on most machines. */
static bool shm_is_tmpfs(void)
{
    ms__filesystem filesystem;
    return ms__filesystem_of("/dev/shm", &filesystem, NULL) == MS_OK && filesystem.is_memory;
}

static bool home_is_on_disk(void)
{
    ms__filesystem filesystem;
    return ms__filesystem_of(home, &filesystem, NULL) == MS_OK && !filesystem.is_memory &&
           filesystem.free_bytes > (UINT64_C(2) << 30);
}

/* ---- directories -------------------------------------------------------- */

static void a_named_directory_is_made_and_described(void **state)
{
    (void)state;
    ms_disk disk;
    ms_error err;
    if (!home_is_on_disk()) {
        skip();
    }
    assert_ms_ok(ms_disk_probe(in_home("a/b/spill/"), &disk, &err), err);
    assert_string_equal(disk.dir, in_home("a/b/spill"));
    assert_true(exists(disk.dir));
    assert_string_not_equal(disk.filesystem, "");
    assert_string_equal(disk.refusal, "");
    assert_false(disk.is_memory);
    assert_true(disk.free_bytes > 0);
    struct stat info;
    assert_int_equal(stat(disk.dir, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0700);
}

static void relative_directories_become_absolute(void **state)
{
    (void)state;
    ms_disk disk;
    ms_error err;
    char relative[PATH_MAX];
    if (!home_is_on_disk()) {
        skip();
    }
    snprintf(relative, sizeof relative, "%s/here", home);
    assert_ms_ok(ms_disk_probe(relative, &disk, &err), err);
    assert_string_equal(disk.dir, in_home("here"));
}

static void memory_file_systems_are_refused_and_left_alone(void **state)
{
    (void)state;
    ms_disk disk;
    ms_error err;
    if (!shm_is_tmpfs()) {
        skip();
    }
    memset(&disk, 0x5a, sizeof disk);
    assert_ms_fails(ms_disk_probe("/dev/shm", &disk, &err), MS_ECONFIG, err,
                    "disk_offload_dir: /dev/shm is a tmpfs, which is memory; name a directory on a "
                    "disk");
    assert_int_equal(disk.dir[0], 0x5a);
    assert_ms_fails(ms_disk_probe("/dev/shm/memscale-test/x", &disk, &err), MS_ECONFIG, err, "is a tmpfs");
    assert_false(exists("/dev/shm/memscale-test"));
}

static void unusable_directories_are_refused(void **state)
{
    (void)state;
    ms_disk disk;
    ms_error err;
    assert_ms_ok(ms__file_write_text(in_home("file"), "x", 1, &err), err);
    assert_ms_fails(ms_disk_probe(in_home("file"), &disk, &err), MS_ECONFIG, err, "is not a directory");
    assert_ms_fails(ms_disk_probe(in_home("file/below"), &disk, &err), MS_ECONFIG, err, "is not a directory");
    assert_ms_fails(ms_disk_probe("/proc/memscale", &disk, &err), MS_ECONFIG, err,
                    "does not exist and can't be made (");
    assert_ms_fails(ms_disk_probe("/proc", &disk, &err), MS_ECONFIG, err, "can't be written (");
    char path[2 * PATH_MAX];
    memset(path, 'p', sizeof path);
    path[0] = '/';
    path[sizeof path - 1] = '\0';
    assert_ms_fails(ms_disk_probe(path, &disk, &err), MS_ECONFIG, err, "/pppp");
}

static void a_failing_system_refuses_with_its_reason(void **state)
{
    (void)state;
    ms_disk disk;
    ms_error err;
    if (!home_is_on_disk()) {
        skip();
    }
    bool fired = true;
    int refusals = 0;
    for (uint64_t nth = 1; fired; nth++) {
        ms_fault_arm(MS_FAULT_OPEN, nth, EACCES);
        int rc = ms_disk_probe(in_home("spill"), &disk, &err);
        fired = ms_fault_passed(MS_FAULT_OPEN) >= nth;
        ms_fault_disarm_all();
        if (rc != MS_OK) {
            assert_int_equal(rc, MS_ECONFIG);
            assert_non_null(strstr(err.text, "Permission denied"));
            refusals++;
        }
        rmdir(in_home("spill"));
    }
    assert_true(refusals >= 3);
    ms_fault_arm(MS_FAULT_ALLOC, 1, 0);
    assert_ms_fails(ms_disk_probe(in_home("spill"), &disk, &err), MS_ENOMEM, err, "out of memory");
}

static void the_first_place_on_a_disk_is_chosen(void **state)
{
    (void)state;
    ms_disk disk;
    if (!home_is_on_disk()) {
        skip();
    }
    ms__disk_choose(false, &disk);
    assert_string_equal(disk.dir, in_home(".cache/memscale/spill"));
    assert_false(exists(in_home(".cache")));
    ms__disk_choose(true, &disk);
    assert_true(exists(in_home(".cache/memscale/spill")));
    setenv("XDG_CACHE_HOME", in_home("xdg"), 1);
    ms__disk_choose(true, &disk);
    assert_string_equal(disk.dir, in_home("xdg/memscale/spill"));
    setenv("XDG_CACHE_HOME", "relative", 1);
    ms__disk_choose(false, &disk);
    assert_string_equal(disk.dir, in_home(".cache/memscale/spill"));
    if (shm_is_tmpfs()) {
        setenv("XDG_CACHE_HOME", "/dev/shm/memscale-test", 1);
        ms__disk_choose(true, &disk);
        assert_string_equal(disk.dir, in_home(".cache/memscale/spill"));
        assert_false(exists("/dev/shm/memscale-test"));
    }
}

static void without_a_place_the_tier_is_off_and_says_why(void **state)
{
    (void)state;
    ms_hardware_options options = {.no_measure = true};
    ms_error err;
    char before[PATH_MAX];
    if (!shm_is_tmpfs() || !exists("/var/tmp")) {
        skip();
    }
    /* Fault points make /var/tmp and the other places unusable. */
    assert_non_null(getcwd(before, sizeof before));
    setenv("HOME", "/dev/shm/memscale-test", 1);
    assert_int_equal(chdir("/proc"), 0);
    ms_disk disk;
    ms__disk_choose(false, &disk);
    if (strcmp(disk.dir, "/var/tmp") == 0) {
        bool is_off = false;
        for (uint64_t nth = 1; nth < 64 && !is_off; nth++) {
            ms_fault_arm(MS_FAULT_OPEN, nth, EACCES);
            ms__disk_choose(false, &disk);
            ms_fault_disarm_all();
            is_off = disk.dir[0] == '\0';
        }
        assert_true(is_off);
    }
    assert_non_null(strstr(disk.refusal, "memscale-test"));
    assert_non_null(strstr(disk.refusal, "/var/tmp"));
    assert_ms_ok(ms_hardware_probe(&options, &machine, &err), err);
    assert_int_equal(chdir(before), 0);
}

/* ---- the whole probe ---------------------------------------------------- */

static void this_machine_is_described_without_writing(void **state)
{
    (void)state;
    ms_hardware_options options = {.no_measure = true};
    ms_error err;
    assert_ms_ok(ms_hardware_probe(&options, &machine, &err), err);
    assert_true(machine.cpu.usable_cpus >= 1);
    assert_string_not_equal(machine.cpu.name, "");
    assert_true(machine.cpu.matmul_flops_per_s > 0 && machine.disk.read_bytes_per_s > 0);
    assert_true(machine.ram.total_bytes >= machine.ram.available_bytes);
    assert_int_equal(machine.gpu_count, 0);
    assert_int_equal(machine.device, -1);
    assert_int_equal(machine.time_scale_permille, 1000);
    assert_false(exists(in_home(".cache")));
    char *text = ms_hardware_to_json(&machine);
    assert_ms_ok(ms_hardware_parse(text, &again, &err), err);
    char *second = ms_hardware_to_json(&again);
    assert_string_equal(text, second);
    ms_free(text);
    ms_free(second);
}

static void an_unusable_named_directory_fails_the_probe(void **state)
{
    (void)state;
    ms_error err;
    if (!shm_is_tmpfs()) {
        skip();
    }
    for (int no_measure = 0; no_measure < 2; no_measure++) {
        ms_hardware_options options = {.disk_dir = "/dev/shm", .no_measure = no_measure};
        assert_ms_fails(ms_hardware_probe(&options, &machine, &err), MS_ECONFIG, err,
                        "disk_offload_dir: /dev/shm is a tmpfs");
    }
}

/* The path of the one cache file of this kind, or NULL. */
static const char *cache_file(const char *kind)
{
    static char path[PATH_MAX];
    char command[PATH_MAX + 64];
    snprintf(command, sizeof command, "ls '%s'/rates-%s-*.json 2>/dev/null", in_home("cache"), kind);
    FILE *list = popen(command, "r");
    char *found = list != NULL ? fgets(path, sizeof path, list) : NULL;
    if (list != NULL) {
        pclose(list);
    }
    path[strcspn(path, "\n")] = '\0';
    return found;
}

static void replace_in_file(const char *path, const char *from, const char *to)
{
    char *text = NULL;
    size_t length;
    ms_error err;
    assert_ms_ok(ms__file_read_text(path, 1 << 20, &text, &length, &err), err);
    char *at = strstr(text, from);
    assert_non_null(at);
    assert_int_equal(strlen(from), strlen(to));
    memcpy(at, to, strlen(to));
    assert_ms_ok(ms__file_write_text(path, text, length, &err), err);
    ms_free(text);
}

static void assert_two_digits(uint64_t rate)
{
    assert_true(rate > 0);
    assert_int_equal(ms_round_2_digits(rate), rate);
}

/* A number that no measurement gives shows that the cache is read. */
static void set_cached(const char *kind, const char *rate, uint64_t old_value, const char *digit)
{
    char from[128];
    char to[128];
    snprintf(from, sizeof from, "\"%s\": %llu", rate, (unsigned long long)old_value);
    snprintf(to, sizeof to, "%s", from);
    to[strlen(to) - 1] = digit[0];
    replace_in_file(cache_file(kind), from, to);
}

static void rates_are_measured_once_and_kept(void **state)
{
    (void)state;
    ms_error err;
    ms_hardware_options options = {.cache_dir = in_home("cache"), .disk_dir = in_home("spill")};
    char cache_dir[PATH_MAX];
    char disk_dir[PATH_MAX];
    if (!home_is_on_disk()) {
        skip();
    }
    options.cache_dir = strcpy(cache_dir, options.cache_dir);
    options.disk_dir = strcpy(disk_dir, options.disk_dir);
    assert_ms_ok(ms_hardware_probe(&options, &machine, &err), err);
    assert_two_digits(machine.cpu.matmul_flops_per_s);
    assert_two_digits(machine.cpu.stream_bytes_per_s);
    assert_two_digits(machine.cpu.fault_bytes_per_s);
    assert_two_digits(machine.cpu.checksum_bytes_per_s);
    assert_two_digits(machine.cpu.evaluations_per_s);
    assert_two_digits(machine.cpu.pack_bytes_per_s);
    assert_two_digits(machine.cpu.unpack_bytes_per_s);
    assert_two_digits(machine.disk.write_bytes_per_s);
    assert_two_digits(machine.disk.read_bytes_per_s);
    assert_non_null(cache_file("cpu"));
    assert_non_null(cache_file("disk"));

    set_cached("cpu", "checksum_bytes_per_s", machine.cpu.checksum_bytes_per_s, "7");
    set_cached("disk", "read_bytes_per_s", machine.disk.read_bytes_per_s, "7");
    assert_ms_ok(ms_hardware_probe(&options, &again, &err), err);
    assert_int_equal(again.cpu.checksum_bytes_per_s, machine.cpu.checksum_bytes_per_s + 7);
    assert_int_equal(again.disk.read_bytes_per_s, machine.disk.read_bytes_per_s + 7);
    assert_int_equal(again.cpu.matmul_flops_per_s, machine.cpu.matmul_flops_per_s);

    /* Rates of another key, or damaged ones, are measured again. */
    replace_in_file(cache_file("cpu"), "\"machine ", "\"mochine ");
    assert_ms_ok(ms__file_write_text(cache_file("disk"), "{\"version\": 1", 13, &err), err);
    assert_ms_ok(ms_hardware_probe(&options, &again, &err), err);
    assert_two_digits(again.cpu.checksum_bytes_per_s);
    assert_two_digits(again.disk.read_bytes_per_s);

    set_cached("cpu", "checksum_bytes_per_s", again.cpu.checksum_bytes_per_s, "7");
    set_cached("disk", "read_bytes_per_s", again.disk.read_bytes_per_s, "7");
    options.no_cache = true;
    assert_ms_ok(ms_hardware_probe(&options, &again, &err), err);
    assert_two_digits(again.cpu.checksum_bytes_per_s);
    options.no_cache = false;
    assert_ms_ok(ms_hardware_probe(&options, &machine, &err), err);
    assert_int_equal(again.cpu.checksum_bytes_per_s, machine.cpu.checksum_bytes_per_s);
    assert_int_equal(again.disk.read_bytes_per_s, machine.disk.read_bytes_per_s);
}

static void a_refused_measurement_fails_and_leaks_nothing(void **state)
{
    (void)state;
    static const struct {
        ms_fault kind;
        int system_errno, code;
        uint64_t nth;
    } rows[] = {
        {MS_FAULT_MAP, ENOMEM, MS_ENOMEM, 1},     {MS_FAULT_OPEN, EACCES, MS_ESYSTEM, 1},
        {MS_FAULT_THREAD, EAGAIN, MS_ESYSTEM, 1}, {MS_FAULT_THREAD, EAGAIN, MS_ESYSTEM, 2},
        {MS_FAULT_THREAD, EAGAIN, MS_ESYSTEM, 3}, {MS_FAULT_WRITE, EIO, MS_EIO, 1},
        {MS_FAULT_WRITE, ENOSPC, MS_ENOSPC, 2},   {MS_FAULT_READ, EIO, MS_EIO, 2},
        {MS_FAULT_ALLOC, 0, MS_ENOMEM, 1},
    };
    ms_disk disk = {.direct_io = true};
    ms_cpu cpu = {.usable_cpus = 2};
    ms_error err;
    snprintf(disk.dir, sizeof disk.dir, "%s", getenv("HOME"));
    uint64_t blocks = ms_memory_live_blocks();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ms_fault_arm(rows[i].kind, rows[i].nth, rows[i].system_errno);
        assert_ms_fails(ms__rates_measure_disk(&disk, 32 << 20, UINT64_MAX / 2, &err), rows[i].code, err, "");
        ms_fault_disarm_all();
        assert_int_equal(ms_memory_live_blocks(), blocks);
    }
    ms_fault_arm(MS_FAULT_SHORT, 1, 0);
    assert_ms_ok(ms__rates_measure_disk(&disk, 32 << 20, UINT64_MAX / 2, &err), err);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].code == MS_ENOMEM || rows[i].kind == MS_FAULT_THREAD) {
            ms_fault_arm(rows[i].kind, rows[i].nth, rows[i].system_errno);
            assert_ms_fails(ms__rates_measure_cpu(&cpu, 32 << 20, &err), rows[i].code, err, "");
            ms_fault_disarm_all();
            assert_int_equal(ms_memory_live_blocks(), blocks);
            assert_int_equal(cpu.matmul_flops_per_s, 0);
        }
    }
}

/* The machine is described whatever the system refuses. */
static void without_a_measurement_defaults_stand_in(void **state)
{
    (void)state;
    char cache_dir[PATH_MAX];
    char disk_dir[PATH_MAX];
    ms_error err;
    if (!home_is_on_disk()) {
        skip();
    }
    ms_hardware_options options = {
        .cache_dir = strcpy(cache_dir, in_home("cache")),
        .disk_dir = strcpy(disk_dir, in_home("spill")),
    };
    ms_hardware_options unmeasured = {.no_measure = true};
    assert_ms_ok(ms_hardware_probe(&unmeasured, &machine, &err), err);
    ms_fault_arm(MS_FAULT_THREAD, 1, EAGAIN);
    assert_ms_ok(ms_hardware_probe(&options, &again, &err), err);
    ms_fault_disarm_all();
    assert_int_equal(again.cpu.matmul_flops_per_s, machine.cpu.matmul_flops_per_s);
    assert_null(cache_file("cpu"));
    assert_non_null(cache_file("disk"));

    /* A disk that refuses direct I/O is measured without it; a failing disk is off. */
    bool was_direct = again.disk.direct_io;
    assert_ms_ok(ms_hardware_probe(&options, &again, &err), err);
    assert_non_null(cache_file("cpu"));
    unlink(cache_file("disk"));
    ms_fault_arm(MS_FAULT_WRITE, 1, EINVAL);
    assert_ms_ok(ms_hardware_probe(&options, &again, &err), err);
    ms_fault_disarm_all();
    assert_false(again.disk.direct_io);
    assert_string_equal(again.disk.dir, was_direct ? disk_dir : "");
    assert_true((again.disk.dir[0] == '\0') == (again.disk.refusal[0] != '\0'));
}

#define IN_HOME(test) cmocka_unit_test_setup_teardown(test, enter_home, leave_home)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_HOME(a_named_directory_is_made_and_described),        IN_HOME(relative_directories_become_absolute),
        IN_HOME(memory_file_systems_are_refused_and_left_alone), IN_HOME(unusable_directories_are_refused),
        IN_HOME(a_failing_system_refuses_with_its_reason),       IN_HOME(the_first_place_on_a_disk_is_chosen),
        IN_HOME(without_a_place_the_tier_is_off_and_says_why),   IN_HOME(this_machine_is_described_without_writing),
        IN_HOME(an_unusable_named_directory_fails_the_probe),    IN_HOME(rates_are_measured_once_and_kept),
        IN_HOME(a_refused_measurement_fails_and_leaks_nothing),  IN_HOME(without_a_measurement_defaults_stand_in),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
