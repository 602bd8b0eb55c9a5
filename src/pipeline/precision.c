/*
 * Decides once whether wrapped forwards run under autocast to BF16 or FP16 (`use_mixed_precision`). On a CPU it
 * compares the step traced without and with autocast. Part of the pipeline; the caller enters autocast.
 */
#include <stdio.h>

#include "base/units.h"
#include "memscale/pipeline.h"
#include "sim/sim.h"

/* Rates of BF16 matrix products in permille of fp32's. With tiles (AMX), 5300 was measured through torch
 * on products of a GPT-2 block; without, the instruction does twice the work of fp32's. Both include a
 * margin. */
enum { TILES_PERMILLE = 4000, PAIRS_PERMILLE = 1500 };
/* A step must be 3% faster, or 5% smaller and not slower. */
enum { FASTER_PERMILLE = 970, SMALLER_PERMILLE = 950 };
enum { GPU_WITH_BF16 = 8, LINE_MOST = 400 };

static uint64_t matmul_permille(uint32_t isa)
{
    return (isa & MS_ISA_AMX_BF16) != 0 ? TILES_PERMILLE : (isa & MS_ISA_AVX512_BF16) != 0 ? PAIRS_PERMILLE : 0;
}

static int set_line(const char *text, char **line, ms_error *err)
{
    *line = ms_strdup(text);
    return *line != NULL ? MS_OK : ms_fail(err, MS_ENOMEM, "precision: out of memory");
}

const char *ms_precision_name(ms_precision precision)
{
    return precision == MS_PRECISION_BF16 ? "bfloat16" : precision == MS_PRECISION_FP16 ? "float16" : "";
}

static int choose_on_gpu(const ms_hardware *hardware, bool has_fp16_parameters, ms_precision *chosen, char **line,
                         ms_error *err)
{
    const ms_gpu *gpu = ms_hardware_gpu(hardware);
    if (gpu == NULL) {
        *chosen = MS_PRECISION_AS_IS;
        return set_line("use_mixed_precision: not used: nothing is known of this GPU", line, err);
    }
    if (gpu->compute_major >= GPU_WITH_BF16) {
        *chosen = MS_PRECISION_BF16;
        return set_line("use_mixed_precision: forwards run under autocast to BF16, which this GPU computes", line, err);
    }
    *chosen = has_fp16_parameters ? MS_PRECISION_AS_IS : MS_PRECISION_FP16;
    return set_line(
        has_fp16_parameters
            ? "use_mixed_precision: not used: this GPU does not compute BF16, and FP16 needs parameters in FP32; "
              "some are in FP16: call model.float() first"
            : "use_mixed_precision: forwards run under autocast to FP16, because this GPU does not compute BF16; "
              "backward scales the loss, and a step whose gradients overflow is skipped",
        line, err);
}

int ms_pipeline_precision(const ms_graph *plain, const ms_graph *half, bool has_fp16_parameters, ms_hardware *hardware,
                          ms_precision *chosen, char **line, ms_error *err)
{
    if (!ms_hardware_host_is_device(hardware)) {
        return choose_on_gpu(hardware, has_fp16_parameters, chosen, line, err);
    }
    uint64_t permille = matmul_permille(hardware->cpu.isa);
    if (permille == 0) {
        *chosen = MS_PRECISION_AS_IS;
        return set_line("use_mixed_precision: not used: this processor has no instructions for BF16, and emulates it "
                        "slower than it computes fp32",
                        line, err);
    }
    if (plain == NULL || half == NULL) {
        *chosen = MS_PRECISION_AS_IS;
        return set_line("use_mixed_precision: not used: the step can't be traced in both precisions, so a gain is not "
                        "known",
                        line, err);
    }
    ms_hardware faster = *hardware;
    faster.cpu.matmul_flops_per_s = ms__mul_div(hardware->cpu.matmul_flops_per_s, permille, 1000);
    ms_replay before, after;
    int rc = ms__simulate_kept(plain, hardware, &before, err);
    if (rc == MS_OK) {
        rc = ms__simulate_kept(half, &faster, &after, err);
    }
    if (rc != MS_OK) {
        return rc;
    }
    bool is_faster = after.step_ns <= ms__mul_div(before.step_ns, FASTER_PERMILLE, 1000);
    bool is_smaller = after.peak_bytes <= ms__mul_div(before.peak_bytes, SMALLER_PERMILLE, 1000);
    bool used = is_faster || (is_smaller && after.step_ns <= before.step_ns);
    char text[LINE_MOST];
    snprintf(
        text, sizeof text,
        "use_mixed_precision: %s: under autocast to BF16 a step with everything kept is predicted to take %s, not %s, "
        "and to need %s, not %s",
        used ? "forwards run under autocast" : "not used", ms__text_ns(after.step_ns).text,
        ms__text_ns(before.step_ns).text, ms__text_bytes(after.peak_bytes).text,
        ms__text_bytes(before.peak_bytes).text);
    rc = set_line(text, line, err);
    if (rc == MS_OK) {
        *chosen = used ? MS_PRECISION_BF16 : MS_PRECISION_AS_IS;
        hardware->cpu.matmul_flops_per_s = used ? faster.cpu.matmul_flops_per_s : hardware->cpu.matmul_flops_per_s;
    }
    return rc;
}
