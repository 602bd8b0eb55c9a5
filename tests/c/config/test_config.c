/* The configuration: defaults are the published ones, every bad value names its field, a written config reads back
 * the same. */
#include "memscale/config.h"
#include "test_common.h"

/* Parses an object of one field. */
static int parse_field(const char *name, const char *value, ms_config *config, ms_error *err)
{
    char json[8192];
    snprintf(json, sizeof json, "{\"version\": 1, \"%s\": %s}", name, value);
    return ms_config_parse(json, config, err);
}

static int parse_async(const char *name, const char *value, ms_config *config, ms_error *err)
{
    char object[256];
    snprintf(object, sizeof object, "{\"%s\": %s}", name, value);
    return parse_field("async_config", object, config, err);
}

static void the_defaults_are_the_published_ones(void **state)
{
    (void)state;
    ms_config config;
    ms_error err;
    assert_ms_ok(ms_config_parse("{\"version\": 1}", &config, &err), err);
    assert_int_equal(config.mode, MS_MODE_BALANCED);
    assert_true(config.enable_checkpointing && config.enable_offloading);
    assert_true(config.use_static_profiling && config.use_empirical_fallback);
    assert_true(config.enable_logging);
    assert_false(config.enable_tiling || config.use_mixed_precision || config.use_8bit_optimizer);
    assert_false(config.force_optimize || config.verify_correctness);
    assert_true(config.async_offload);
    assert_false(config.auto_policy || config.async_debug);
    assert_int_equal(config.warmup_steps, 2);
    assert_int_equal(config.target_utilization_permille, 850);
    assert_true(config.memory_budget_bytes == MS_UNSET);
    assert_true(config.max_cpu_offload_bytes == MS_UNSET);
    assert_true(config.max_disk_offload_bytes == MS_UNSET);
    assert_true(config.pinned_pool_bytes == MS_UNSET);
    assert_int_equal(config.observability_port, -1);
    assert_int_equal(config.prefetch_depth, 0);
    assert_int_equal(config.num_streams, 0);
    assert_string_equal(config.disk_offload_dir, "");
    assert_string_equal(config.log_file, "");
}

static void a_written_config_reads_back_byte_for_byte(void **state)
{
    (void)state;
    ms_config config;
    ms_config again;
    ms_error err;
    ms_config_default(&config);
    config.mode = MS_MODE_AGGRESSIVE;
    config.enable_tiling = config.async_debug = true;
    config.memory_budget_bytes = 3800000001;
    config.max_cpu_offload_bytes = 0;
    config.max_disk_offload_bytes = 1000000000000000;
    config.pinned_pool_bytes = 1;
    config.prefetch_depth = 3;
    config.num_streams = 2;
    config.warmup_steps = 1000;
    config.observability_port = 65535;
    config.target_utilization_permille = 1;
    strcpy(config.disk_offload_dir, "/scratch/\303\244 \"quoted\"");
    strcpy(config.log_file, "run.log");
    char *first = ms_config_to_json(&config);
    assert_non_null(first);
    assert_ms_ok(ms_config_parse(first, &again, &err), err);
    char *second = ms_config_to_json(&again);
    assert_string_equal(first, second);
    assert_true(again.memory_budget_bytes == config.memory_budget_bytes);
    assert_true(again.max_disk_offload_bytes == config.max_disk_offload_bytes);
    assert_true(again.max_cpu_offload_bytes == 0 && again.pinned_pool_bytes == 1);
    assert_string_equal(again.disk_offload_dir, config.disk_offload_dir);
    ms_free(first);
    ms_free(second);
}

/* Bytes are whole, and every budget is written back as the user gave it. */
static void gigabytes_are_1e9_bytes_to_the_byte(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } rows[] = {{"4.0", 4000000000},           {"4", 4000000000},     {"0.1", 100000000},
                {"7.236", 7236000000},         {"1e-9", 1},           {"4.1", 4100000000},
                {"1000000", 1000000000000000}, {"2.5e1", 25000000000}};
    ms_config config;
    ms_error err;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_ms_ok(parse_field("memory_budget_gb", rows[i].text, &config, &err), err);
        assert_int_equal(config.memory_budget_bytes, rows[i].bytes);
    }
}

typedef struct bad_row {
    const char *name, *value, *text;
} bad_row;

static void every_bad_value_names_field_value_and_what_is_allowed(void **state)
{
    (void)state;
    static const bad_row rows[] = {
        {"memory_budget_gb", "-1.0",
         "memory_budget_gb: -1.0 is not allowed; give a positive number of GB (1e9 bytes) or None"},
        {"memory_budget_gb", "0", "memory_budget_gb: 0 is not allowed; give a positive number"},
        {"memory_budget_gb", "1e-12", "memory_budget_gb: 1e-12 is not allowed"},
        {"memory_budget_gb", "1e300", "give at most 1000000 GB"},
        {"memory_budget_gb", "true", "memory_budget_gb: True is not allowed"},
        {"memory_budget_gb", "\"4\"", "memory_budget_gb: '4' is not allowed"},
        {"memory_budget_gb", "[4]", "memory_budget_gb: [4] is not allowed"},
        {"memory_budget_gb", "{\"__repr__\": \"nan\"}", "memory_budget_gb: nan is not allowed"},
        {"max_cpu_offload_gb", "-0.5", "give a number of GB (1e9 bytes) of at least 0, or None"},
        {"max_disk_offload_gb", "-1", "max_disk_offload_gb: -1 is not allowed"},
        {"mode", "\"fast\"", "mode: 'fast' is not allowed; give 'conservative', 'balanced' or"},
        {"mode", "null", "mode: None is not allowed"},
        {"mode", "1",
         "mode: 1 is not allowed; give 'conservative', 'balanced' or 'aggressive'; a budget is "
         "memory_budget_gb=..."},
        {"enable_tiling", "1", "enable_tiling: 1 is not allowed; give True or False"},
        {"enable_tiling", "null", "enable_tiling: None is not allowed"},
        {"target_gpu_utilization", "0", "give a number above 0 and at most 1"},
        {"target_gpu_utilization", "1.0001", "target_gpu_utilization: 1.0001 is not allowed"},
        {"target_gpu_utilization", "false", "target_gpu_utilization: False is not allowed"},
        {"warmup_steps", "0", "warmup_steps: 0 is not allowed; give an integer from 1 to 1000"},
        {"warmup_steps", "1001", "warmup_steps: 1001 is not allowed"},
        {"warmup_steps", "2.0", "warmup_steps: 2.0 is not allowed"},
        {"warmup_steps", "null", "warmup_steps: None is not allowed"},
        {"observability_port", "0", "give a port from 1 to 65535 or None"},
        {"observability_port", "65536", "observability_port: 65536 is not allowed"},
        {"disk_offload_dir", "\"\"", "disk_offload_dir: '' is not allowed; give a path"},
        {"log_file", "7", "log_file: 7 is not allowed"},
        {"async_config", "3", "async_config: 3 is not allowed; give an AsyncOffloadConfig or None"},
        {"async_config", "{\"__repr__\": \"{}\"}", "async_config: {} is not allowed"},
        {"no_such", "3", "no_such: there is no such field"},
    };
    ms_config config;
    ms_error err;
    memset(&config, 0x5a, sizeof config);
    ms_config before = config;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_ms_fails(parse_field(rows[i].name, rows[i].value, &config, &err), MS_ECONFIG, err, rows[i].text);
        assert_memory_equal(&config, &before, sizeof config);
    }
}

static void nested_fields_are_named_with_their_object(void **state)
{
    (void)state;
    ms_config config;
    ms_error err;
    assert_ms_ok(parse_async("num_streams", "2", &config, &err), err);
    assert_int_equal(config.num_streams, 2);
    assert_ms_fails(parse_async("num_streams", "65", &config, &err), MS_ECONFIG, err,
                    "async_config.num_streams: 65 is not allowed; give an integer from 1 to 64 or");
    assert_ms_fails(parse_async("prefetch_depth", "-3", &config, &err), MS_ECONFIG, err,
                    "async_config.prefetch_depth: -3");
    assert_ms_fails(parse_async("pinned_pool_gb", "0", &config, &err), MS_ECONFIG, err,
                    "async_config.pinned_pool_gb: 0");
    assert_ms_fails(parse_async("version", "1", &config, &err), MS_ECONFIG, err,
                    "async_config.version: there is no such field");
}

static void long_values_are_cut_and_stay_one_line_of_text(void **state)
{
    (void)state;
    ms_config config;
    ms_error err;
    char value[8000];
    memset(value, 'x', sizeof value);
    value[0] = value[5001] = '"';
    value[5002] = '\0';
    assert_ms_fails(parse_field("disk_offload_dir", value, &config, &err), MS_ECONFIG, err,
                    "xxx... is not allowed; give a path of 1 to 4095 bytes or None");
    for (size_t i = 1; i < 5001; i += 2) {
        memcpy(value + i, "\303\244", 2); /* cut between characters */
    }
    assert_ms_fails(parse_field("disk_offload_dir", value, &config, &err), MS_ECONFIG, err, "\303\244... is not");
    assert_ms_fails(parse_field("mode", "{\"__repr__\": \"a\\nb\"}", &config, &err), MS_ECONFIG, err,
                    "mode: a b is not allowed");
}

static void documents_that_are_no_config_are_refused(void **state)
{
    (void)state;
    ms_config config;
    ms_error err;
    assert_ms_fails(ms_config_parse("", &config, &err), MS_EFORMAT, err, "config: line");
    assert_ms_fails(ms_config_parse("[]", &config, &err), MS_EFORMAT, err, "expected an object");
    assert_ms_fails(ms_config_parse("{}", &config, &err), MS_EFORMAT, err, "$.version");
    assert_ms_fails(ms_config_parse("{\"version\": 2}", &config, &err), MS_EVERSION, err, "2");
    assert_ms_fails(ms_config_parse("{\"version\": 1, \"version\": 1}", &config, &err), MS_EFORMAT, err, "duplicate");
    assert_int_equal(ms_config_parse("{}", &config, NULL), MS_EFORMAT);
}

static void assert_no_argument(const char *name, const char *expected)
{
    static const char *const own[] = {"target", "config", "sample_input", "async_offload", "async_config", NULL};
    char *text = ms_config_no_argument("wrap", name, own);
    assert_non_null(text);
    assert_string_equal(text, expected);
    ms_free(text);
}

static void an_argument_that_is_a_field_or_misspelled_is_told(void **state)
{
    (void)state;
    assert_no_argument("memory_budget_gb", "memscale.wrap() has no argument memory_budget_gb, it is a field of Config: "
                                           "give config=memscale.Config(memory_budget_gb=...)");
    assert_no_argument("memory_budget", "memscale.wrap() has no argument memory_budget; did you mean "
                                        "config=memscale.Config(memory_budget_gb=...)?");
    assert_no_argument("sample_inputs", "memscale.wrap() has no argument sample_inputs; did you mean sample_input?");
    assert_no_argument("zzz", "memscale.wrap() has no argument zzz; options are fields of Config: give "
                              "config=memscale.Config(...)");
}

static void modes_have_names(void **state)
{
    (void)state;
    assert_string_equal(ms_mode_name(MS_MODE_CONSERVATIVE), "conservative");
    assert_string_equal(ms_mode_name(MS_MODE_AGGRESSIVE), "aggressive");
    assert_string_equal(ms_mode_name((ms_mode)77), "unknown");
}

/* Each allocation fails in turn: the call returns an error and leaves nothing allocated. */
static void running_out_of_memory_leaks_nothing(void **state)
{
    (void)state;
    static const char json[] = "{\"version\": 1, \"memory_budget_gb\": 4.0, \"log_file\": \"x\","
                               " \"async_config\": {\"num_streams\": 2}}";
    ms_config config;
    ms_error err;
    uint64_t blocks = ms_memory_live_blocks();
    int failures = 0;
    for (uint64_t nth = 1;; nth++) {
        ms_fault_arm(MS_FAULT_ALLOC, nth, 0);
        int rc = ms_config_parse(json, &config, &err);
        bool fired = ms_fault_passed(MS_FAULT_ALLOC) >= nth;
        ms_fault_disarm_all();
        assert_int_equal(ms_memory_live_blocks(), blocks);
        if (!fired) {
            assert_int_equal(rc, MS_OK);
            break;
        }
        assert_int_equal(rc, MS_ENOMEM);
        failures++;
    }
    assert_true(failures > 5);
    char *whole = ms_config_to_json(&config);
    blocks = ms_memory_live_blocks();
    for (uint64_t nth = 1;; nth++) {
        ms_fault_arm(MS_FAULT_ALLOC, nth, 0);
        char *text = ms_config_to_json(&config);
        bool fired = ms_fault_passed(MS_FAULT_ALLOC) >= nth;
        ms_fault_disarm_all();
        if (text != NULL) {
            assert_string_equal(text, whole); /* all of it, or nothing */
        }
        assert_true(fired || text != NULL);
        ms_free(text);
        assert_int_equal(ms_memory_live_blocks(), blocks);
        if (!fired) {
            break;
        }
    }
    ms_free(whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_defaults_are_the_published_ones),
        cmocka_unit_test(a_written_config_reads_back_byte_for_byte),
        cmocka_unit_test(gigabytes_are_1e9_bytes_to_the_byte),
        cmocka_unit_test(every_bad_value_names_field_value_and_what_is_allowed),
        cmocka_unit_test(nested_fields_are_named_with_their_object),
        cmocka_unit_test(long_values_are_cut_and_stay_one_line_of_text),
        cmocka_unit_test(documents_that_are_no_config_are_refused),
        cmocka_unit_test(an_argument_that_is_a_field_or_misspelled_is_told),
        cmocka_unit_test(modes_have_names),
        cmocka_unit_test(running_out_of_memory_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
