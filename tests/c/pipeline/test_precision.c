/*
 * Autocast to BF16 or FP16: used if the machine has the instructions and the step gains, with the reason in
 * the log; and the scale of a loss under FP16.
 */
#include "plan_fixture.h"

typedef struct fixture {
    ms_graph *plain, *half;
    ms_hardware *hardware;
    bool has_fp16_parameters;
} fixture;

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    f->plain = fixture_graph(0);
    f->half = fixture_graph(0);
    f->hardware = fixture_real_hardware();
    f->hardware->cpu.isa = MS_ISA_AVX2 | MS_ISA_AVX512F | MS_ISA_AVX512_BF16;
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    ms_graph_free(f->plain);
    ms_graph_free(f->half);
    ms_free(f->hardware);
    free(f);
    return 0;
}

/* Decides. The line must contain `words`, and the rate must be the chosen precision's. */
static ms_precision decide(const fixture *f, const ms_graph *half, uint64_t permille, const char *words)
{
    ms_error err;
    ms_precision chosen = MS_PRECISION_FP16;
    char *line = NULL;
    uint64_t rate = f->hardware->cpu.matmul_flops_per_s;
    assert_ms_ok(ms_pipeline_precision(f->plain, half, f->has_fp16_parameters, f->hardware, &chosen, &line, &err), err);
    if (strstr(line, words) == NULL) {
        fail_msg("\"%s\" is not in: %s", words, line);
    }
    assert_int_equal(f->hardware->cpu.matmul_flops_per_s, rate * permille / 1000);
    ms_free(line);
    return chosen;
}

static void a_faster_step_uses_bf16(void **state)
{
    fixture *f = *state;
    assert_int_equal(decide(f, f->half, 1500, "forwards run under autocast"), MS_PRECISION_BF16);
    f->hardware->cpu.matmul_flops_per_s = 1000000000;
    f->hardware->cpu.isa |= MS_ISA_AMX_BF16;
    assert_int_equal(decide(f, f->half, 4000, "forwards run under autocast"), MS_PRECISION_BF16);
}

/* Casts without products to make up for them. */
static void a_step_without_gain_does_not(void **state)
{
    fixture *f = *state;
    f->hardware->cpu.matmul_flops_per_s = UINT64_C(1) << 50;
    assert_int_equal(decide(f, f->half, 1000, "not used: under autocast"), MS_PRECISION_AS_IS);
}

/* As fast, and smaller. */
static void a_smaller_step_uses_bf16(void **state)
{
    fixture *f = *state;
    f->hardware->cpu.matmul_flops_per_s = UINT64_C(1) << 50;
    for (uint32_t i = 0; i < f->half->storage_count; i++) {
        assert_true(f->half->storages[i].bytes > 0);
    }
    ms_profile *layer = &f->half->profiles[0];
    for (uint32_t i = layer->external_count; i < layer->storage_count; i++) {
        layer->storage_bytes[i] /= 2;
    }
    assert_int_equal(decide(f, f->half, 1500, "forwards run under autocast"), MS_PRECISION_BF16);
}

static void bf16_needs_instructions(void **state)
{
    fixture *f = *state;
    f->hardware->cpu.isa = MS_ISA_AVX2 | MS_ISA_AVX512F | MS_ISA_AVX512_VNNI;
    assert_int_equal(decide(f, f->half, 1000, "no instructions for BF16"), MS_PRECISION_AS_IS);
}

static void bf16_needs_a_trace(void **state)
{
    fixture *f = *state;
    assert_int_equal(decide(f, NULL, 1000, "can't be traced in both precisions"), MS_PRECISION_AS_IS);
}

static void on_a_gpu_the_generation_decides(void **state)
{
    fixture *f = *state;
    f->hardware->device = 0;
    f->hardware->gpu_count = 1;
    f->hardware->gpu[0].compute_major = 8;
    assert_int_equal(decide(f, NULL, 1000, "to BF16, which this GPU computes"), MS_PRECISION_BF16);
    f->hardware->gpu[0].compute_major = 7;
    assert_int_equal(decide(f, f->half, 1000, "backward scales the loss"), MS_PRECISION_FP16);
    f->has_fp16_parameters = true;
    assert_int_equal(decide(f, f->half, 1000, "call model.float() first"), MS_PRECISION_AS_IS);
    f->hardware->gpu[0].compute_major = 9;
    assert_int_equal(decide(f, f->half, 1000, "to BF16"), MS_PRECISION_BF16);
    f->hardware->device = 1;
    assert_int_equal(decide(f, f->half, 1000, "nothing is known of this GPU"), MS_PRECISION_AS_IS);
}

static void a_scale_halves_at_once_and_doubles_after_many_steps(void **state)
{
    (void)state;
    ms_loss_scale scale;
    ms_loss_scale_default(&scale);
    assert_true(scale.scale == 65536 && scale.finite_steps == 0);
    for (int i = 0; i < 1999; i++) {
        ms_loss_scale_update(&scale, true);
    }
    assert_true(scale.scale == 65536);
    ms_loss_scale_update(&scale, true);
    assert_true(scale.scale == 131072 && scale.finite_steps == 0);
    ms_loss_scale_update(&scale, true);
    ms_loss_scale_update(&scale, false);
    assert_true(scale.scale == 65536 && scale.finite_steps == 0);
}

static void a_scale_has_bounds(void **state)
{
    (void)state;
    ms_loss_scale scale;
    ms_loss_scale_default(&scale);
    for (int i = 0; i < 40; i++) {
        ms_loss_scale_update(&scale, false);
    }
    assert_true(scale.scale == 1);
    for (int i = 0; i < 2000 * 50; i++) {
        ms_loss_scale_update(&scale, true);
    }
    assert_true(scale.scale == 0x1p40);
}

static void failed_allocations_leave_no_leak(void **state)
{
    fixture *f = *state;
    uint64_t blocks = ms_memory_live_blocks(), rate = f->hardware->cpu.matmul_flops_per_s;
    for (uint64_t nth = 1; nth < 10000; nth++) {
        ms_error err;
        ms_precision chosen = MS_PRECISION_AS_IS;
        char *line = NULL;
        ms_fault_arm(MS_FAULT_ALLOC, nth, 12);
        int rc = ms_pipeline_precision(f->plain, f->half, false, f->hardware, &chosen, &line, &err);
        bool reached = ms_fault_passed(MS_FAULT_ALLOC) >= nth;
        ms_fault_disarm_all();
        ms_free(line);
        assert_int_equal(ms_memory_live_blocks(), blocks);
        if (!reached) {
            assert_int_equal(rc, MS_OK);
            return;
        }
        assert_int_equal(rc, MS_ENOMEM);
        assert_int_equal(f->hardware->cpu.matmul_flops_per_s, rate);
    }
    fail_msg("it never ran to its end");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_faster_step_uses_bf16),
        TEST(a_step_without_gain_does_not),
        TEST(a_smaller_step_uses_bf16),
        TEST(bf16_needs_instructions),
        TEST(bf16_needs_a_trace),
        TEST(on_a_gpu_the_generation_decides),
        cmocka_unit_test(a_scale_halves_at_once_and_doubles_after_many_steps),
        cmocka_unit_test(a_scale_has_bounds),
        TEST(failed_allocations_leave_no_leak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
