/* Processes with few resources: files, descriptors, memory, directories. Opening an engine fails with a
 * message, or the engine works: it refuses stores that don't fit, keeps the others, and the process
 * survives. Each test runs in its own process. */
#include "offload_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TRIED = 6 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const bool has_own_memory = false; /* a sanitizer's memory is unbounded */
#else
static const bool has_own_memory = true;
#endif

static bool limit(int resource, rlim_t most)
{
    struct rlimit limits;
    if (getrlimit(resource, &limits) != 0) {
        return false;
    }
    limits.rlim_cur = most;
    return setrlimit(resource, &limits) == 0;
}

/* Puts the limit of files back, because coverage data are written at the end of a process. */
static void lift_limit(void)
{
    struct rlimit limits;
    if (getrlimit(RLIMIT_FSIZE, &limits) == 0) {
        limits.rlim_cur = limits.rlim_max;
        (void)setrlimit(RLIMIT_FSIZE, &limits);
    }
}

/* ---- in the process ------------------------------------------------------------------ */

static int wrong; /* broken expectations, written to stderr */

static bool expect(bool is_right, const char *what, const ms_error *err)
{
    if (!is_right) {
        wrong++;
        fprintf(stderr, "%s: %s: %s\n", tested->name, what, err != NULL ? err->text : "");
    }
    return is_right;
}

/* Stores 1 MiB at a time: returns the number stored and fetched. The others must fail with `code`;
 * MS_OK: none may fail. */
static int stores_that_arrive(ms_offload *engine, int code, int system_errno)
{
    ms_ticket tickets[TRIED] = {0};
    unsigned char *memory = pages_new(MIB);
    int arrived = 0;
    for (uint64_t i = 0; i < TRIED; i++) {
        ms_error err = {0};
        pattern(memory, MIB, i);
        int rc = ms_offload_store(engine, memory, MIB, MIB, &tickets[i], &err);
        if (rc == MS_OK) {
            rc = ms_offload_wait(engine, tickets[i], &err);
        }
        expect(rc == MS_OK || (rc == code && err.system_errno == system_errno), "a store", &err);
        arrived += rc == MS_OK;
    }
    for (uint64_t i = 0; i < TRIED; i++) {
        ms_error err = {0};
        fill(memory, 0, MIB);
        if (ms_offload_state(engine, tickets[i]) == MS_TICKET_STORED) {
            int rc = ms_offload_fetch(engine, tickets[i], memory, MIB, &err);
            if (rc == MS_OK) {
                rc = ms_offload_wait(engine, tickets[i], &err);
            }
            expect(rc == MS_OK && has_pattern(memory, MIB, i), "a fetch", &err);
        }
        ms_offload_drop(engine, tickets[i]);
    }
    pages_free(memory, MIB);
    return arrived;
}

/* Opens an engine; NULL if that failed with `code` and a message. */
static ms_offload *try_open(const ms_offload_options *options, int code)
{
    ms_error err = {0};
    ms_offload *engine = NULL;
    int rc = ms_offload_open(options, &engine, &err);
    bool is_told = rc == code && err.code == code && err.text[0] != '\0';
    expect(rc == MS_OK ? engine != NULL : engine == NULL && is_told, "opening", &err);
    return engine;
}

/* Files of 3 MiB at most, with the signal that kills a writer beyond that: a host program need not
 * ignore it as Python does. */
static void files_of_three_megabytes(void)
{
    ms_offload_options options = small_options();
    signal(SIGXFSZ, SIG_DFL);
    limit(RLIMIT_FSIZE, 3 * MIB);
    ms_offload *engine = try_open(&options, MS_OK);
    if (expect(engine != NULL, "an engine", NULL)) {
        bool is_bound = tested->tier == MS_TIER_DISK;
        int arrived = stores_that_arrive(engine, MS_ENOSPC, EFBIG);
        expect(arrived == (is_bound ? 3 : TRIED), "what fits", NULL);
        expect(stores_that_arrive(engine, MS_ENOSPC, EFBIG) == arrived, "what fits again", NULL);
        ms_offload_close(engine);
    }
}

static void no_files_at_all(void)
{
    if (tested->from_device) {
        return; /* the double keeps its device's memory in files */
    }
    ms_offload_options options = small_options();
    signal(SIGXFSZ, SIG_DFL);
    limit(RLIMIT_FSIZE, 0);
    ms_offload *engine = try_open(&options, MS_ENOSPC);
    if (engine != NULL) { /* the first write only tests direct I/O */
        int arrived = stores_that_arrive(engine, MS_ENOSPC, EFBIG);
        expect(arrived == (tested->tier == MS_TIER_DISK ? 0 : TRIED), "what fits", NULL);
        ms_offload_close(engine);
    }
}

/* From no spare descriptor upwards, until the engine opens. */
static void few_descriptors(void)
{
    if (tested->from_device) {
        return; /* the double keeps its device's memory in files */
    }
    int probe = dup(0);
    rlim_t used = (rlim_t)probe;
    close(probe);
    for (rlim_t spare = 0; spare < 8; spare++) {
        ms_offload_options options = small_options();
        limit(RLIMIT_NOFILE, used + 8); /* the hard limit cannot be raised again */
        setrlimit(RLIMIT_NOFILE, &(struct rlimit){used + spare, used + 8});
        size_t before = spare > 0 ? count_fds() : 0;
        ms_offload *engine = try_open(&options, MS_ESYSTEM);
        if (engine != NULL) {
            expect(stores_that_arrive(engine, MS_OK, 0) == TRIED, "stores with few descriptors", NULL);
            ms_offload_close(engine);
        } else {
            expect(tested->tier == MS_TIER_DISK && spare < 3, "refused with descriptors left", NULL);
        }
        expect(spare == 0 || count_fds() == before, "descriptors left behind", NULL);
    }
}

/* In a program without standard streams, new files get their descriptors. */
static void no_standard_input(void)
{
    ms_offload_options options = small_options();
    close(0);
    ms_offload *engine = try_open(&options, MS_OK);
    if (engine != NULL) {
        expect(stores_that_arrive(engine, MS_OK, 0) == TRIED, "stores by descriptor 0", NULL);
        ms_offload_close(engine);
    }
    expect(fcntl(0, F_GETFD) == -1, "descriptor 0 stays open", NULL);
}

/* Address space for the slab and a little more, but not for all stores. */
static void little_memory(void)
{
    ms_offload_options options = small_options();
    unsigned char *first = pages_new(MIB); /* so that the double and threads have their memory */
    ms_offload *warm = try_open(&options, MS_OK);
    ms_offload_close(warm);
    pages_free(first, MIB);
    for (uint64_t spare = 0; spare < 40; spare += 4) {
        char line[256] = "";
        unsigned long pages = 0;
        FILE *file = fopen("/proc/self/statm", "r");
        if (file == NULL || fgets(line, sizeof line, file) == NULL || sscanf(line, "%lu", &pages) != 1) {
            expect(false, "statm", NULL);
            return;
        }
        fclose(file);
        setrlimit(RLIMIT_AS, &(struct rlimit){pages * 4096 + spare * MIB, RLIM_INFINITY});
        ms_error err = {0};
        ms_offload *engine = NULL;
        int rc = ms_offload_open(&options, &engine, &err);
        setrlimit(RLIMIT_AS, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY});
        expect(rc == MS_OK || (engine == NULL && err.text[0] != '\0'), "opening with little memory", &err);
        if (engine != NULL) {
            expect(stores_that_arrive(engine, MS_OK, 0) == TRIED, "stores afterwards", NULL);
            ms_offload_close(engine);
        }
    }
}

/* The file has no name: cleaning up its directory removes nothing. */
static void a_directory_that_vanishes(void)
{
    char dir[4200];
    ms_offload_options options = small_options();
    snprintf(dir, sizeof dir, "%s/vanishes", spill_dir);
    options.dir = dir;
    ms_offload *engine = try_open(&options, MS_OK);
    expect(rmdir(dir) == 0 || tested->tier != MS_TIER_DISK, "removing the directory", NULL);
    if (engine != NULL) {
        expect(stores_that_arrive(engine, MS_OK, 0) == TRIED, "stores without a directory", NULL);
        ms_offload_close(engine);
    }
}

/* Paths that are not directories to write in. */
static void wrong_directories(void)
{
    char file[4200], dangling[4200], loop[4200], sealed[4200], link[4200];
    snprintf(file, sizeof file, "%s/file", spill_dir);
    snprintf(dangling, sizeof dangling, "%s/dangling", spill_dir);
    snprintf(loop, sizeof loop, "%s/loop", spill_dir);
    snprintf(sealed, sizeof sealed, "%s/sealed", spill_dir);
    snprintf(link, sizeof link, "%s/link", spill_dir);
    close(open(file, O_CREAT | O_WRONLY, 0600));
    expect(symlink("/nowhere/at/all", dangling) == 0 && symlink(loop, loop) == 0 && symlink(spill_dir, link) == 0 &&
               mkdir(sealed, 0500) == 0,
           "making paths", NULL);
    const char *const paths[] = {file, dangling, loop, "/proc/self/fd", "/dev/null", sealed};
    for (size_t i = 0; tested->tier == MS_TIER_DISK && i < sizeof paths / sizeof paths[0]; i++) {
        ms_offload_options options = small_options();
        options.dir = paths[i];
        ms_offload *engine = try_open(&options, MS_ESYSTEM);
        expect(engine == NULL || (paths[i] == sealed && geteuid() == 0), paths[i], NULL);
        ms_offload_close(engine);
    }
    ms_offload_options options = small_options();
    options.dir = link; /* a link to a directory is accepted */
    ms_offload_close(try_open(&options, MS_OK));
    unlink(file);
    unlink(dangling);
    unlink(loop);
    unlink(link);
    rmdir(sealed);
}

/* No room on the tier, not even for a byte. */
static void a_cap_of_nothing(void)
{
    ms_offload_options options = small_options();
    options.cap_bytes = 0;
    options.disk_cap_bytes = 1;
    ms_offload *engine = try_open(&options, MS_OK);
    if (engine != NULL) {
        expect(stores_that_arrive(engine, MS_ENOSPC, 0) == 0, "stores into nothing", NULL);
        ms_offload_close(engine);
    }
}

/* A slab larger than any machine. */
static void a_slab_beyond_memory(void)
{
    const uint64_t sizes[] = {UINT64_C(1) << 50, UINT64_MAX, UINT64_MAX - 64 * KIB};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        ms_error err = {0};
        ms_offload *engine = NULL;
        ms_offload_options options = small_options();
        options.slab_bytes = sizes[i];
        int rc = ms_offload_open(&options, &engine, &err);
        expect((rc == MS_ENOMEM || rc == MS_EOVERFLOW) && engine == NULL, "a slab beyond memory", &err);
    }
}

static const struct {
    const char *name;
    void (*body)(void);
    bool limits_memory;
} cases[] = {
    {"files of three megabytes", files_of_three_megabytes, false},
    {"no files at all", no_files_at_all, false},
    {"few descriptors", few_descriptors, false},
    {"no standard input", no_standard_input, false},
    {"little memory", little_memory, true},
    {"a directory that vanishes", a_directory_that_vanishes, false},
    {"wrong directories", wrong_directories, false},
    {"a cap of nothing", a_cap_of_nothing, false},
    {"a slab beyond memory", a_slab_beyond_memory, true},
};

/* ---- the test ----------------------------------------------------------------------------- */

static void an_engine_works_or_is_refused_with_a_message(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char which[16], number[16];
        int status = 0;
        if (cases[i].limits_memory && !has_own_memory) {
            continue;
        }
        snprintf(which, sizeof which, "%zu", i);
        snprintf(number, sizeof number, "%zu", backend_number());
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            execl("/proc/self/exe", "test_limits", which, number, spill_dir, (char *)NULL);
            _exit(1);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            fail_msg("%s, %s: status %#x", tested->name, cases[i].name, (unsigned)status);
        }
        assert_int_equal(count_entries(spill_dir), 0);
    }
}

int main(int argc, char **argv)
{
    if (argc == 4) { /* the process that a test starts */
        choose_backend(strtoul(argv[2], NULL, 10), argv[3]);
        cases[strtoul(argv[1], NULL, 10)].body();
        lift_limit();
        return wrong;
    }
    const struct CMUnitTest tests[] = {
        OFFLOAD_TEST(an_engine_works_or_is_refused_with_a_message),
    };
    return run_on_every_backend("limits", tests, sizeof tests / sizeof tests[0]);
}
