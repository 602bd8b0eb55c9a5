/*
 * loss_kernels.h - the element-wise work of the loss head, plain C that compilers vectorise. Each
 * loss_<set>.c defines MS_LOSS_TABLE and MS_LOSS_NAME and includes it once; the build gives each
 * its instruction set. Every operation is rounded correctly, so all tables give the same bits.
 *
 * The exponential is Sleef_expf_u10 of SLEEF (https://sleef.org, Boost licence), with an error
 * below one unit in the last place: torch computes its softmaxes with it.
 *
 * Tests: tests/c/techniques/test_loss.c.
 */
#include "techniques/float_bits.h"
#include "techniques/loss.h"

static inline float power_of_two(int32_t exponent)
{
    return float_of((uint32_t)(exponent + 127) << 23);
}

static inline float exp_of(float d)
{
    /* Clamps, also NaN, to the range in which the conversion to an integer is defined. */
    float x = d > -105.0f ? d : -105.0f;
    x = x < 101.0f ? x : 101.0f;
    float q = __builtin_rintf(x * 1.442695040888963407359924681f);
    float s = __builtin_fmaf(q, -0.693145751953125f, x);
    s = __builtin_fmaf(q, -1.428606765330187045e-06f, s);
    float u = 0.000198527617612853646278381f;
    u = __builtin_fmaf(u, s, 0.00139304355252534151077271f);
    u = __builtin_fmaf(u, s, 0.00833336077630519866943359f);
    u = __builtin_fmaf(u, s, 0.0416664853692054748535156f);
    u = __builtin_fmaf(u, s, 0.166666671633720397949219f);
    u = __builtin_fmaf(u, s, 0.5f);
    u = 1.0f + __builtin_fmaf(s * s, u, s);
    int32_t n = (int32_t)q;
    u = u * power_of_two(n >> 1) * power_of_two(n - (n >> 1));
    u = d < -104.0f ? 0.0f : u;
    u = d > 100.0f ? __builtin_inff() : u;
    return d != d ? d : u;
}

static float largest(const float *values, size_t count)
{
    /* Integers ordered as the floats are, so that the maximum does not depend on the order of elements. */
    int32_t most = INT32_MIN;
    int32_t nan_count = 0;
    for (size_t i = 0; i < count; i++) {
        int32_t bits = (int32_t)bits_of(values[i]);
        int32_t key = bits ^ ((bits >> 31) & 0x7fffffff);
        most = key > most ? key : most;
        nan_count |= (bits & 0x7fffffff) > 0x7f800000;
    }
    return nan_count != 0 ? __builtin_nanf("") : float_of((uint32_t)(most ^ ((most >> 31) & 0x7fffffff)));
}

static void exponentials(const float *restrict logits, float most, float *restrict out, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        out[i] = exp_of(logits[i] - most);
    }
}

/* Not restrict: `out` may be `logits`. Each element is read before it is written. */
static void gradient(const float *logits, float most, float log_sum, float sum, float *out, size_t count)
{
#pragma GCC ivdep
    for (size_t i = 0; i < count; i++) {
        out[i] = __builtin_fmaf(-exp_of(logits[i] - most - log_sum), sum, 0.0f);
    }
}

const ms__loss_kernels MS_LOSS_TABLE = {
    .name = MS_LOSS_NAME,
    .largest = largest,
    .exponentials = exponentials,
    .gradient = gradient,
};
