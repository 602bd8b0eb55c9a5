/*
 * Pressure, and the rules: each admits or refuses as documented and names itself.
 */
#include "memscale/rules.h"
#include "test_common.h"

#define MIB ((uint64_t)1 << 20)
#define GB ((uint64_t)1000000000)

/* ---- a graph of three nodes: root work, a large layer, a small one -------------------- */

enum { ROOT, LARGE, SMALL, NODES };

static ms_event saves[] = {{.kind = MS_EVENT_ALLOC, .storage = 1},
                           {.kind = MS_EVENT_SAVE, .storage = 1},
                           {.kind = MS_EVENT_SAVE, .storage = 0}};
static uint64_t sizes[NODES][2] = {{2 * MIB, 30 * MIB}, {4 * MIB, 100 * MIB}, {1000, 2000}};
static uint32_t first_input[] = {0};
static uint32_t first_external[] = {0};
static ms_storage shared[] = {{.bytes = 4 * MIB}};
static ms_profile profiles[NODES];
static ms_node nodes[NODES];
static ms_graph graph;
static ms_hardware hardware;
static ms_config config;
static ms_pressure pressure;
static ms_admission admissions[NODES];

static int set_up(void **state)
{
    (void)state;
    static char name[] = "h";
    memset(&graph, 0, sizeof graph);
    memset(&hardware, 0, sizeof hardware);
    memset(&pressure, 0, sizeof pressure);
    for (int i = 0; i < NODES; i++) {
        profiles[i] = (ms_profile){.storage_count = 2,
                                   .external_count = i == LARGE,
                                   .storage_bytes = sizes[i],
                                   .input_count = 1,
                                   .inputs = first_input,
                                   .forward_count = 3,
                                   .forward = saves};
        nodes[i] = (ms_node){.name = name,
                             .kind = i == ROOT ? MS_NODE_ROOT : MS_NODE_LAYER,
                             .profile = (uint32_t)i,
                             .externals = first_external};
    }
    graph = (ms_graph){.storage_count = 1,
                       .storages = shared,
                       .profile_count = NODES,
                       .profiles = profiles,
                       .node_count = NODES,
                       .nodes = nodes};
    shared[0].role = MS_STORAGE_ACTIVATION;
    hardware.device = -1;
    hardware.ram.total_bytes = hardware.ram.available_bytes = 64 * GB;
    hardware.ram.limit_bytes = UINT64_MAX;
    strcpy(hardware.disk.dir, "/somewhere");
    hardware.disk.free_bytes = 100 * GB;
    ms_config_default(&config);
    pressure = (ms_pressure){.need_bytes = 8 * GB, .allowed_bytes = 4 * GB, .permille = 2000, .budget_given = true};
    return 0;
}

static void admit(void)
{
    ms_error err;
    assert_ms_ok(ms_rules_admit(&graph, &hardware, &config, &pressure, admissions, &err), err);
}

static void expect(int node, ms_technique technique, bool admitted, ms_rule rule)
{
    bool is = (admissions[node].techniques >> technique & 1) != 0;
    if (is != admitted || admissions[node].rule[technique] != (uint32_t)rule) {
        fail_msg("node %d, %s: %s by %s", node, ms_technique_name(technique), is ? "admitted" : "refused",
                 ms_rule_name((ms_rule)admissions[node].rule[technique]));
    }
}

static void refused(int node, ms_technique technique, ms_rule rule)
{
    expect(node, technique, false, rule);
}

static void admitted(int node, ms_technique technique, ms_rule rule)
{
    expect(node, technique, true, rule);
}

/* ---- pressure ----------------------------------------------------------------------------- */

static void a_budget_sets_the_allowed_bytes(void **state)
{
    (void)state;
    config.memory_budget_bytes = 4 * GB;
    ms_pressure_of(6 * GB, &hardware, &config, &pressure);
    assert_int_equal(pressure.allowed_bytes, 4 * GB);
    assert_int_equal(pressure.permille, 1500);
    assert_true(pressure.budget_given && !pressure.comfortable && !pressure.forced);
}

static void without_a_budget_a_share_of_the_device_is_allowed(void **state)
{
    (void)state;
    ms_pressure_of(6 * GB, &hardware, &config, &pressure);
    assert_int_equal(pressure.allowed_bytes, 64 * GB * 85 / 100);
    assert_true(!pressure.budget_given && pressure.comfortable);
    hardware.ram.limit_bytes = 8 * GB;
    config.target_utilization_permille = 500;
    ms_pressure_of(6 * GB, &hardware, &config, &pressure);
    assert_int_equal(pressure.allowed_bytes, 4 * GB);
    assert_false(pressure.comfortable);
}

static void a_fit_is_comfortable_up_to_85_percent(void **state)
{
    (void)state;
    config.memory_budget_bytes = 10 * GB;
    ms_pressure_of(8500000000, &hardware, &config, &pressure);
    assert_true(pressure.comfortable);
    ms_pressure_of(8500000001, &hardware, &config, &pressure);
    assert_false(pressure.comfortable);
}

static void force_is_for_runs_without_a_binding_budget(void **state)
{
    (void)state;
    config.force_optimize = true;
    ms_pressure_of(6 * GB, &hardware, &config, &pressure);
    assert_true(pressure.forced && !pressure.comfortable);
    config.memory_budget_bytes = 10 * GB;
    ms_pressure_of(6 * GB, &hardware, &config, &pressure);
    assert_true(pressure.forced);
    config.memory_budget_bytes = 5 * GB;
    ms_pressure_of(6 * GB, &hardware, &config, &pressure);
    assert_true(!pressure.forced && !pressure.comfortable);
}

/* ---- rules -------------------------------------------------------------------------------- */

static void bytes_are_summed_over_storages(void **state)
{
    (void)state;
    admit();
    assert_int_equal(admissions[ROOT].saved_bytes, 32 * MIB);
    assert_int_equal(admissions[LARGE].saved_bytes, 104 * MIB);
    assert_int_equal(admissions[LARGE].offload_bytes, 104 * MIB);
    assert_int_equal(admissions[SMALL].offload_bytes, 0);
    shared[0].role = MS_STORAGE_BATCH; /* the caller's: moving it frees nothing */
    admit();
    assert_int_equal(admissions[LARGE].saved_bytes, 100 * MIB);
}

static void under_pressure_every_technique_of_the_mode_is_admitted(void **state)
{
    (void)state;
    admit();
    for (int i = 0; i < NODES; i++) {
        admitted(i, MS_TECHNIQUE_KEEP, MS_RULE_KEEP_ALWAYS);
    }
    admitted(LARGE, MS_TECHNIQUE_RECOMPUTE, MS_RULE_PRESSURE);
    admitted(LARGE, MS_TECHNIQUE_RECOMPUTE_OFFLOAD_INPUT, MS_RULE_PRESSURE);
    admitted(LARGE, MS_TECHNIQUE_OFFLOAD_DISK, MS_RULE_PRESSURE);
    refused(LARGE, MS_TECHNIQUE_OFFLOAD_HOST, MS_RULE_HOST_IS_DEVICE);
}

static void root_work_can_move_but_not_run_again(void **state)
{
    (void)state;
    admit();
    refused(ROOT, MS_TECHNIQUE_RECOMPUTE, MS_RULE_ROOT_WORK);
    refused(ROOT, MS_TECHNIQUE_RECOMPUTE_OFFLOAD_INPUT, MS_RULE_ROOT_WORK);
    admitted(ROOT, MS_TECHNIQUE_OFFLOAD_DISK, MS_RULE_PRESSURE);
}

static void a_comfortable_run_admits_keep_only(void **state)
{
    (void)state;
    pressure.comfortable = true;
    admit();
    for (int i = 0; i < NODES; i++) {
        admitted(i, MS_TECHNIQUE_KEEP, MS_RULE_COMFORTABLE);
        for (int technique = 1; technique < MS_TECHNIQUE_COUNT; technique++) {
            refused(i, (ms_technique)technique, MS_RULE_COMFORTABLE);
        }
    }
}

static void the_conservative_mode_only_recomputes(void **state)
{
    (void)state;
    config.mode = MS_MODE_CONSERVATIVE;
    admit();
    admitted(LARGE, MS_TECHNIQUE_RECOMPUTE, MS_RULE_PRESSURE);
    refused(LARGE, MS_TECHNIQUE_RECOMPUTE_OFFLOAD_INPUT, MS_RULE_MODE);
    refused(LARGE, MS_TECHNIQUE_OFFLOAD_DISK, MS_RULE_MODE);
    refused(LARGE, MS_TECHNIQUE_OFFLOAD_HOST, MS_RULE_MODE);
}

static void flags_switch_techniques_off(void **state)
{
    (void)state;
    config.enable_checkpointing = false;
    admit();
    refused(LARGE, MS_TECHNIQUE_RECOMPUTE, MS_RULE_FLAG_OFF);
    refused(LARGE, MS_TECHNIQUE_RECOMPUTE_OFFLOAD_INPUT, MS_RULE_FLAG_OFF);
    admitted(LARGE, MS_TECHNIQUE_OFFLOAD_DISK, MS_RULE_PRESSURE);
    config.enable_checkpointing = true;
    config.enable_offloading = false;
    admit();
    admitted(LARGE, MS_TECHNIQUE_RECOMPUTE, MS_RULE_PRESSURE);
    refused(LARGE, MS_TECHNIQUE_RECOMPUTE_OFFLOAD_INPUT, MS_RULE_FLAG_OFF);
    refused(LARGE, MS_TECHNIQUE_OFFLOAD_DISK, MS_RULE_FLAG_OFF);
}

static void layers_that_cannot_run_again_are_refused(void **state)
{
    (void)state;
    static const struct {
        uint32_t flag;
        ms_rule rule;
    } cases[] = {{MS_NODE_MUTATES_INPUT, MS_RULE_MUTATES_INPUT},
                 {MS_NODE_OPAQUE_ARGUMENT, MS_RULE_OPAQUE_ARGUMENT},
                 {MS_NODE_NOT_REPEATABLE, MS_RULE_NOT_REPEATABLE},
                 {MS_NODE_NO_TENSOR_INPUT, MS_RULE_NO_TENSOR_INPUT}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        nodes[LARGE].flags = cases[i].flag;
        admit();
        refused(LARGE, MS_TECHNIQUE_RECOMPUTE, cases[i].rule);
        refused(LARGE, MS_TECHNIQUE_RECOMPUTE_OFFLOAD_INPUT, cases[i].rule);
        admitted(LARGE, MS_TECHNIQUE_OFFLOAD_DISK, MS_RULE_PRESSURE);
    }
    /* These two flags do not prevent recomputation. */
    nodes[LARGE].flags = MS_NODE_UPDATES_BUFFERS | MS_NODE_USES_RNG;
    admit();
    admitted(LARGE, MS_TECHNIQUE_RECOMPUTE, MS_RULE_PRESSURE);
}

static void compiled_layers_run_again_whole_only(void **state)
{
    (void)state;
    profiles[LARGE].maker_count = 1;
    nodes[LARGE].flags = MS_NODE_COMPILED;
    admit();
    for (int technique = 1; technique < MS_TECHNIQUE_COUNT; technique++) {
        if (ms_technique_of((ms_technique)technique)->set > 0) {
            refused(LARGE, (ms_technique)technique, MS_RULE_COMPILED);
        }
    }
    admitted(LARGE, MS_TECHNIQUE_RECOMPUTE, MS_RULE_PRESSURE);
    admitted(LARGE, MS_TECHNIQUE_OFFLOAD_DISK, MS_RULE_PRESSURE);
    assert_false(admissions[LARGE].packs);
    assert_int_equal(admissions[LARGE].packing_rule, MS_RULE_COMPILED);
    nodes[LARGE].flags = 0;
    admit();
    assert_true(admissions[LARGE].packs);
    profiles[LARGE].maker_count = 0;
}

static void an_unhookable_module_is_left_alone(void **state)
{
    (void)state;
    nodes[LARGE].flags = MS_NODE_UNHOOKABLE;
    pressure.forced = true;
    admit();
    for (int technique = 1; technique < MS_TECHNIQUE_COUNT; technique++) {
        refused(LARGE, (ms_technique)technique, MS_RULE_UNHOOKABLE);
    }
}

static void what_lies_on_another_device_is_kept(void **state)
{
    (void)state;
    nodes[LARGE].flags = MS_NODE_ELSEWHERE;
    pressure.forced = true;
    admit();
    assert_false(admissions[LARGE].packs);
    for (int technique = 1; technique < MS_TECHNIQUE_COUNT; technique++) {
        refused(LARGE, (ms_technique)technique, MS_RULE_ELSEWHERE);
    }
    assert_int_equal(admissions[LARGE].rule[MS_TECHNIQUE_KEEP], MS_RULE_ELSEWHERE);
}

static void small_layers_stay_unless_forced(void **state)
{
    (void)state;
    admit();
    refused(SMALL, MS_TECHNIQUE_RECOMPUTE, MS_RULE_TOO_SMALL);
    refused(SMALL, MS_TECHNIQUE_OFFLOAD_DISK, MS_RULE_TOO_SMALL);
    pressure.forced = true;
    pressure.budget_given = false;
    admit();
    admitted(SMALL, MS_TECHNIQUE_RECOMPUTE, MS_RULE_FORCED);
    admitted(SMALL, MS_TECHNIQUE_RECOMPUTE_OFFLOAD_INPUT, MS_RULE_FORCED);
    admitted(SMALL, MS_TECHNIQUE_OFFLOAD_DISK, MS_RULE_FORCED);
}

/* A loop that calls a small layer often saves much. */
static void small_layers_count_together_if_they_are_equal(void **state)
{
    (void)state;
    static uint64_t middling[2] = {MIB / 4, MIB / 4};
    profiles[SMALL].storage_bytes = middling;
    admit();
    refused(SMALL, MS_TECHNIQUE_RECOMPUTE, MS_RULE_TOO_SMALL);
    nodes[LARGE].profile = SMALL;
    admit();
    admitted(SMALL, MS_TECHNIQUE_RECOMPUTE, MS_RULE_PRESSURE);
    refused(SMALL, MS_TECHNIQUE_OFFLOAD_DISK, MS_RULE_TOO_SMALL); /* a transfer is as small as before */
}

static void low_pressure_touches_the_larger_layers_only(void **state)
{
    (void)state;
    static uint64_t middling[2] = {MIB, 10 * MIB};
    profiles[SMALL].storage_bytes = middling;
    pressure.permille = 1100;
    admit();
    admitted(LARGE, MS_TECHNIQUE_RECOMPUTE, MS_RULE_PRESSURE);
    refused(SMALL, MS_TECHNIQUE_RECOMPUTE, MS_RULE_LOW_PRESSURE);
    assert_true((admissions[SMALL].under_pressure >> MS_TECHNIQUE_RECOMPUTE & 1) != 0);
    pressure.permille = 1101;
    admit();
    admitted(SMALL, MS_TECHNIQUE_RECOMPUTE, MS_RULE_PRESSURE);
    pressure.permille = 1000;
    config.mode = MS_MODE_AGGRESSIVE;
    admit();
    admitted(SMALL, MS_TECHNIQUE_RECOMPUTE, MS_RULE_PRESSURE);
}

static void the_disk_tier_needs_a_real_disk(void **state)
{
    (void)state;
    hardware.disk.is_memory = true;
    admit();
    refused(LARGE, MS_TECHNIQUE_OFFLOAD_DISK, MS_RULE_NO_DISK);
    refused(LARGE, MS_TECHNIQUE_RECOMPUTE_OFFLOAD_INPUT, MS_RULE_NO_DISK);
    hardware.disk.is_memory = false;
    strcpy(hardware.disk.refusal, "read-only");
    admit();
    refused(LARGE, MS_TECHNIQUE_OFFLOAD_DISK, MS_RULE_NO_DISK);
    assert_int_equal(ms_rules_disk_cap(&hardware, &config), 0);
    hardware.disk.refusal[0] = '\0';
    hardware.disk.dir[0] = '\0';
    admit();
    refused(LARGE, MS_TECHNIQUE_OFFLOAD_DISK, MS_RULE_NO_DISK);
}

static void caps_refuse_techniques_that_exceed_them(void **state)
{
    (void)state;
    assert_int_equal(ms_rules_disk_cap(&hardware, &config), 50 * GB);
    config.max_disk_offload_bytes = 50 * MIB;
    assert_int_equal(ms_rules_disk_cap(&hardware, &config), 50 * MIB);
    admit();
    refused(LARGE, MS_TECHNIQUE_OFFLOAD_DISK, MS_RULE_DISK_CAP);
    admitted(LARGE, MS_TECHNIQUE_RECOMPUTE_OFFLOAD_INPUT, MS_RULE_PRESSURE); /* 4 MiB fit */
    admitted(ROOT, MS_TECHNIQUE_OFFLOAD_DISK, MS_RULE_PRESSURE);
    config.max_disk_offload_bytes = 0;
    admit();
    refused(ROOT, MS_TECHNIQUE_OFFLOAD_DISK, MS_RULE_DISK_CAP);
    hardware.disk.free_bytes = 10 * MIB;
    config.max_disk_offload_bytes = 50 * MIB;
    assert_int_equal(ms_rules_disk_cap(&hardware, &config), 10 * MIB);
}

static void a_gpu_moves_to_the_host(void **state)
{
    (void)state;
    hardware.gpu_count = 1;
    hardware.device = 0;
    hardware.gpu[0].copy_engines = 0; /* no driver that could move its memory */
    assert_int_equal(ms_rules_host_cap(&hardware, &config), 0);
    assert_int_equal(ms_rules_disk_cap(&hardware, &config), 0);
    hardware.gpu[0].copy_engines = 2;
    assert_int_equal(ms_rules_host_cap(&hardware, &config), 64 * GB);
    assert_int_equal(ms_rules_pinned(&hardware, &config), hardware.ram.available_bytes / 2);
    config.pinned_pool_bytes = 3 * GB;
    assert_int_equal(ms_rules_pinned(&hardware, &config), 3 * GB);
    config.pinned_pool_bytes = MS_UNSET;
    admit();
    admitted(LARGE, MS_TECHNIQUE_OFFLOAD_HOST, MS_RULE_PRESSURE);
    admitted(LARGE, MS_TECHNIQUE_RECOMPUTE_OFFLOAD_INPUT, MS_RULE_PRESSURE);
    config.max_cpu_offload_bytes = MIB;
    admit();
    refused(LARGE, MS_TECHNIQUE_OFFLOAD_HOST, MS_RULE_HOST_CAP);
    refused(LARGE, MS_TECHNIQUE_RECOMPUTE_OFFLOAD_INPUT, MS_RULE_HOST_CAP);
    admitted(LARGE, MS_TECHNIQUE_OFFLOAD_DISK, MS_RULE_PRESSURE);
}

static void names_read_back(void **state)
{
    (void)state;
    for (int i = 0; i < MS_RULE_COUNT; i++) {
        assert_true(strlen(ms_rule_name((ms_rule)i)) > 3 && strlen(ms_rule_text((ms_rule)i)) > 10);
    }
    assert_string_equal(ms_rule_name((ms_rule)99), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_budget_sets_the_allowed_bytes, set_up),
        cmocka_unit_test_setup(without_a_budget_a_share_of_the_device_is_allowed, set_up),
        cmocka_unit_test_setup(a_fit_is_comfortable_up_to_85_percent, set_up),
        cmocka_unit_test_setup(force_is_for_runs_without_a_binding_budget, set_up),
        cmocka_unit_test_setup(bytes_are_summed_over_storages, set_up),
        cmocka_unit_test_setup(under_pressure_every_technique_of_the_mode_is_admitted, set_up),
        cmocka_unit_test_setup(root_work_can_move_but_not_run_again, set_up),
        cmocka_unit_test_setup(a_comfortable_run_admits_keep_only, set_up),
        cmocka_unit_test_setup(the_conservative_mode_only_recomputes, set_up),
        cmocka_unit_test_setup(flags_switch_techniques_off, set_up),
        cmocka_unit_test_setup(layers_that_cannot_run_again_are_refused, set_up),
        cmocka_unit_test_setup(compiled_layers_run_again_whole_only, set_up),
        cmocka_unit_test_setup(an_unhookable_module_is_left_alone, set_up),
        cmocka_unit_test_setup(what_lies_on_another_device_is_kept, set_up),
        cmocka_unit_test_setup(small_layers_stay_unless_forced, set_up),
        cmocka_unit_test_setup(small_layers_count_together_if_they_are_equal, set_up),
        cmocka_unit_test_setup(low_pressure_touches_the_larger_layers_only, set_up),
        cmocka_unit_test_setup(the_disk_tier_needs_a_real_disk, set_up),
        cmocka_unit_test_setup(caps_refuse_techniques_that_exceed_them, set_up),
        cmocka_unit_test_setup(a_gpu_moves_to_the_host, set_up),
        cmocka_unit_test_setup(names_read_back, set_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
