/* Compression on the way to the tier is on if the link is slow and the bytes get smaller, else off, and
 * the choice is logged. All tests that also run on the backend "compressed file" check that bytes come
 * back exactly, even under faults. */
#include "offload_calls.h"

#include "offload/engine.h"

/* SLOW is slower than the codec, even under a sanitizer on a processor that pauses midway. */
#define SLOW UINT64_C(1000)
#define FAST UINT64_C(50000000000)

static char lines[2048];

static void collect(void *context, ms_log_level level, const char *line)
{
    (void)context;
    (void)level;
    snprintf(lines + strlen(lines), sizeof lines - strlen(lines), "%s\n", line);
}

static ms_offload *open_with(ms_compression compression, uint64_t bytes_per_s)
{
    ms_offload_options options = small_options();
    options.compression = compression;
    options.write_bytes_per_s = options.read_bytes_per_s = bytes_per_s;
    lines[0] = '\0';
    ms_log_set_sink(collect, NULL);
    ms_offload *engine = open_engine(&options);
    ms_log_set_sink(NULL, NULL);
    return engine;
}

/* Either few values, compressible to a third, or noise. */
static void make(unsigned char *memory, uint64_t bytes, bool is_noise)
{
    uint64_t state = 7;
    for (uint64_t at = 0; at < bytes; at++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        memory[at] = (unsigned char)(state >> 40 & (is_noise ? 0xFF : 3));
    }
}

/* Stores and fetches about 600 KiB; returns the compressed bytes and their result. */
static ms_offload_stats move(ms_offload *engine, bool is_noise)
{
    uint64_t bytes = 600 * KIB + 5, area = 604 * KIB;
    unsigned char *source = pages_new(area), *destination = pages_new(area);
    make(source, bytes, is_noise);
    ms_offload_stats before = stats_of(engine);
    ms_ticket ticket = store(engine, source, bytes, area);
    wait_ok(engine, ticket);
    fetch_ok(engine, ticket, destination, area);
    assert_memory_equal(source, destination, bytes);
    ms_offload_drop(engine, ticket);
    pages_free(source, area);
    pages_free(destination, area);
    ms_offload_stats after = stats_of(engine);
    after.compressed_bytes -= before.compressed_bytes;
    after.compressed_into_bytes -= before.compressed_into_bytes;
    after.written_bytes -= before.written_bytes;
    after.read_bytes -= before.read_bytes;
    return after;
}

static bool is_disk(void)
{
    return tested->tier == MS_TIER_DISK && !tested->from_device;
}

static void assert_compresses(ms_offload *engine)
{
    ms_offload_stats stats = move(engine, false);
    assert_true(stats.compressed_bytes >= 576 * KIB);
    assert_true(stats.compressed_into_bytes < stats.compressed_bytes / 2);
    assert_true(stats.written_bytes < 400 * KIB && stats.read_bytes == stats.written_bytes);
}

static void assert_does_not(ms_offload *engine)
{
    ms_offload_stats stats = move(engine, false);
    assert_int_equal(stats.compressed_bytes, 0);
    assert_true(stats.written_bytes >= 600 * KIB);
}

static void a_slow_link_turns_it_on_and_the_log_says_so(void **state)
{
    (void)state;
    HOST_MEMORY_ONLY();
    ms_offload *engine = open_with(MS_COMPRESSION_AUTO, SLOW);
    if (is_disk()) {
        assert_non_null(strstr(lines, "pieces are compressed if that saves time: the link moves "
                                      "1.00 kB/s down and 1.00 kB/s up"));
        assert_compresses(engine);
    } else { /* host memory has no link */
        assert_string_equal(lines, "");
        assert_does_not(engine);
    }
    ms_offload_close(engine);
}

static void a_fast_link_leaves_it_off_and_the_log_says_so(void **state)
{
    (void)state;
    HOST_MEMORY_ONLY();
    ms_offload *engine = open_with(MS_COMPRESSION_AUTO, FAST);
    assert_int_equal(strstr(lines, "nothing is compressed: the link moves 50.00 GB/s") != NULL, is_disk());
    assert_does_not(engine);
    ms_offload_close(engine);
}

static void a_link_of_unknown_rate_leaves_it_off(void **state)
{
    (void)state;
    HOST_MEMORY_ONLY();
    ms_offload *engine = open_with(MS_COMPRESSION_AUTO, 0);
    assert_string_equal(lines, "");
    assert_does_not(engine);
    ms_offload_close(engine);
}

static void incompressible_pieces_are_moved_uncompressed(void **state)
{
    (void)state;
    HOST_MEMORY_ONLY();
    ms_offload *engine = open_with(MS_COMPRESSION_ALWAYS, 0);
    assert_compresses(engine);
    ms_offload_stats stats = move(engine, true);
    assert_int_equal(stats.compressed_bytes, 0);
    assert_true(stats.written_bytes >= 600 * KIB);
    ms_offload_close(engine);
}

/* A piece is compressed if the codec takes less time than the smaller transfer saves. */
static void a_piece_is_compressed_only_if_that_saves_time(void **state)
{
    (void)state;
    HOST_MEMORY_ONLY();
    if (!is_disk()) {
        skip();
    }
    ms_offload *engine = open_with(MS_COMPRESSION_AUTO, SLOW);
    assert_int_equal(engine->compression.link_ns, 2 * MIB * 1000000);
    engine->compression.down = engine->compression.up = (ms__codec_cost){1, 1000001};
    assert_does_not(engine); /* 2000002 ns a byte against 2000000 saved at most */
    engine->compression.down = engine->compression.up = (ms__codec_cost){MIB << 10, (MIB << 10) * 400000};
    assert_compresses(engine); /* 800000 against at least 1000000 */
    ms_offload_close(engine);
}

static void the_environment_decides_instead(void **state)
{
    (void)state;
    HOST_MEMORY_ONLY();
    setenv("MEMSCALE_DISK_COMPRESSION", "always", 1);
    ms_offload *engine = open_with(MS_COMPRESSION_AUTO, 0);
    if (is_disk()) {
        assert_compresses(engine);
    } else {
        assert_does_not(engine);
    }
    ms_offload_close(engine);
    setenv("MEMSCALE_DISK_COMPRESSION", "never", 1);
    engine = open_with(MS_COMPRESSION_AUTO, SLOW);
    assert_string_equal(lines, "");
    assert_does_not(engine);
    ms_offload_close(engine);
    unsetenv("MEMSCALE_DISK_COMPRESSION");
}

/* Zeros at the sampled stretches, noise everywhere else. */
static void a_sample_that_promises_too_much_does_no_harm(void **state)
{
    (void)state;
    HOST_MEMORY_ONLY();
    uint64_t bytes = 64 * KIB;
    unsigned char *source = pages_new(bytes), *destination = pages_new(bytes);
    ms_offload *engine = open_with(MS_COMPRESSION_ALWAYS, 0);
    make(source, bytes, true);
    for (uint64_t i = 0; i < 4; i++) {
        memset(source + (bytes - 4096) / 3 * i / 8 * 8, 0, 4096);
    }
    ms_ticket ticket = store(engine, source, bytes, bytes);
    wait_ok(engine, ticket);
    fetch_ok(engine, ticket, destination, bytes);
    assert_memory_equal(source, destination, bytes);
    ms_offload_drop(engine, ticket);
    ms_offload_close(engine);
    pages_free(source, bytes);
    pages_free(destination, bytes);
}

static void memory_of_a_device_is_never_compressed(void **state)
{
    (void)state;
    if (!tested->from_device) {
        skip();
    }
    ms_offload *engine = open_with(MS_COMPRESSION_ALWAYS, SLOW);
    assert_engine_works(engine);
    assert_int_equal(stats_of(engine).compressed_bytes, 0);
    ms_offload_close(engine);
}

/* The pattern that the other tests store must be compressible, or they would test nothing. */
static void the_tests_pattern_gets_smaller(void **state)
{
    (void)state;
    if (!tested->compresses) {
        skip();
    }
    ms_offload *engine = open_with(MS_COMPRESSION_ALWAYS, 0);
    assert_engine_works(engine);
    ms_offload_stats stats = stats_of(engine);
    assert_true(stats.compressed_bytes > 200 * KIB);
    ms_offload_close(engine);
}

/* Must run before any test that loads the library. */
static void without_the_library_the_engine_works_and_logs_it(void **state)
{
    (void)state;
    ms_fault_arm(MS_FAULT_DRIVER, 1, 0);
    ms_offload *engine = open_with(MS_COMPRESSION_ALWAYS, 0);
    ms_fault_disarm_all();
    assert_non_null(strstr(lines, "nothing is compressed: loading libzstd.so.1 failed"));
    assert_does_not(engine);
    ms_offload_close(engine);
}

int main(void)
{
    const struct CMUnitTest first[] = {OFFLOAD_TEST(without_the_library_the_engine_works_and_logs_it)};
    const struct CMUnitTest tests[] = {
        OFFLOAD_TEST(a_slow_link_turns_it_on_and_the_log_says_so),
        OFFLOAD_TEST(a_fast_link_leaves_it_off_and_the_log_says_so),
        OFFLOAD_TEST(a_link_of_unknown_rate_leaves_it_off),
        OFFLOAD_TEST(incompressible_pieces_are_moved_uncompressed),
        OFFLOAD_TEST(a_piece_is_compressed_only_if_that_saves_time),
        OFFLOAD_TEST(the_environment_decides_instead),
        OFFLOAD_TEST(a_sample_that_promises_too_much_does_no_harm),
        OFFLOAD_TEST(memory_of_a_device_is_never_compressed),
        OFFLOAD_TEST(the_tests_pattern_gets_smaller),
    };
    int failures = run_on_backend("file", "no library", first, 1);
    ms__codec *probe = NULL;
    if (ms__codec_open(&probe, NULL) == MS_ENOTSUP) {
        print_message("skipped: this machine has no zstd\n");
        return failures != 0 ? failures : 77;
    }
    ms__codec_close(probe);
    return failures + run_on_every_backend("compression", tests, sizeof tests / sizeof tests[0]);
}
