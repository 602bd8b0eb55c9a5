/*
 * The row-wise loss head: rows of fp32 logits to losses and gradients, each row by one thread, in
 * the order of operations of torch's kernels. The loss head in Python calls it through ext and
 * chooses rows and memory.
 */
#include "memscale/loss.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/thread.h"
#include "base/units.h"
#include "hardware/isa.h"
#include "techniques/crew.h"
#include "techniques/loss.h"

/* Large enough for milliseconds of work for torch's threads; small enough that a chunk's two or
 * three buffers are small beside GPT-2 small's 412 MB. */
#define CHUNK_BYTES (UINT64_C(24) << 20)

enum {
    BUFFER_ELEMENTS = 1024, /* exponentials before they are summed; whole vectors */
    LANES_MAX = 16,
    ELEMENTS_PER_THREAD = 128 * 1024, /* for fewer, starting another thread does not pay */
};

/* Whole multiples of `unit`, but never more than all tokens. */
static uint64_t chunk_rows(uint64_t tokens, uint64_t row_bytes, uint64_t least, uint64_t unit)
{
    uint64_t rows = CHUNK_BYTES / (row_bytes > 0 ? row_bytes : 1);
    rows = rows > least ? rows : least;
    rows = rows >= unit ? rows / unit * unit : unit;
    rows = rows < least ? rows + unit : rows;
    /* Spread the remainder over the chunks until it is large enough or zero. */
    while (rows < tokens && tokens % rows != 0 && tokens % rows < least) {
        rows += unit;
    }
    rows = rows < tokens ? rows : tokens;
    return rows > 0 ? rows : 1;
}

uint64_t ms_loss_chunk_rows(uint64_t tokens, uint64_t vocabulary, uint64_t item_bytes, uint32_t threads)
{
    return chunk_rows(tokens, ms__mul_sat(vocabulary, item_bytes), threads > 2 ? threads : 2, 1);
}

uint64_t ms_loss_device_chunk_rows(uint64_t tokens, uint64_t vocabulary, uint64_t item_bytes, uint32_t threads)
{
    enum { DEVICE_UNIT = 8 };
    return chunk_rows(tokens, ms__mul_sat(vocabulary, item_bytes), threads > 2 ? threads : 2, DEVICE_UNIT);
}

uint32_t ms_loss_lanes(const char *capability, uint64_t vocabulary)
{
    static const struct {
        const char *name;
        uint32_t lanes;
    } known[] = {{"AVX512", 16}, {"AVX2", 8}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(capability, known[i].name) == 0) {
            return vocabulary >= known[i].lanes ? known[i].lanes : 0;
        }
    }
    return 0;
}

/* ---- kernels ---------------------------------------------------------------------- */

static const ms__loss_kernels *chosen;
static ms__once chosen_once = MS__ONCE_INIT;

static void loss_choose_kernels(void)
{
    uint32_t isa = ms__isa_detect();
    (void)isa;
    chosen = &ms__loss_plain;
#if defined(__x86_64__)
    if (isa & MS_ISA_AVX512F) {
        chosen = &ms__loss_avx512;
    } else if (isa & MS_ISA_AVX2) {
        chosen = &ms__loss_avx2;
    }
#endif
#if defined(__aarch64__)
    chosen = &ms__loss_neon;
#endif
}

/* ---- the logarithm ------------------------------------------------------------------ */

/* A number as the sum of two floats. */
typedef struct pair {
    float high, low;
} pair;

static pair sum_of(float x, float y)
{
    float s = x + y;
    float v = s - x;
    return (pair){s, (x - (s - v)) + (y - v)};
}

static pair quotient_of(pair n, pair d)
{
    float t = 1.0f / d.high;
    float s = n.high * t;
    float u = fmaf(t, n.high, -s);
    float v = fmaf(-d.low, t, fmaf(-d.high, t, 1.0f));
    return (pair){s, fmaf(s, v, fmaf(n.low, t, u))};
}

float ms__loss_log(float value)
{
    if (!(value >= 1.0f) || isinf(value)) {
        return value >= 1.0f ? value : NAN;
    }
    int exponent;
    frexpf(value * (float)(1.0 / 0.75), &exponent);
    exponent--;
    float m = ldexpf(value, -exponent);
    float e = (float)exponent;
    const pair ln2 = {0.69314718246459960938f, -1.904654323148236017e-09f};
    pair s = {ln2.high * e, 0.0f};
    s.low = fmaf(ln2.low, e, fmaf(ln2.high, e, -s.high));
    pair x = quotient_of(sum_of(-1.0f, m), sum_of(1.0f, m));
    float x2 = x.high * x.high;
    float t = fmaf(fmaf(0.3027294874f, x2, 0.3996108174f), x2, 0.6666694880f);
    pair twice = {2.0f * x.high, 2.0f * x.low};
    float high = s.high + twice.high;
    float low = (((s.high - high) + twice.high) + s.low) + twice.low;
    float rest = x2 * x.high * t;
    float total = high + rest;
    return total + (((high - total) + rest) + low);
}

/* ---- sums ---------------------------------------------------------------------------- */

void ms__loss_add_lanes(float *running, uint32_t lanes, const float *values, size_t count)
{
    size_t whole = count - count % lanes;
    float sums[LANES_MAX];
    for (uint32_t lane = 0; lane < lanes; lane++) {
        sums[lane] = running[lane];
    }
    if (lanes == LANES_MAX) {
        for (size_t i = 0; i < whole; i += LANES_MAX) {
            for (uint32_t lane = 0; lane < LANES_MAX; lane++) {
                sums[lane] += values[i + lane];
            }
        }
    } else {
        for (size_t i = 0; i < whole; i += LANES_MAX / 2) {
            for (uint32_t lane = 0; lane < LANES_MAX / 2; lane++) {
                sums[lane] += values[i + lane];
            }
        }
    }
    for (size_t i = whole; i < count; i++) {
        sums[i - whole] += values[i];
    }
    for (uint32_t lane = 0; lane < lanes; lane++) {
        running[lane] = sums[lane];
    }
}

float ms__loss_fold_lanes(float *running, uint32_t lanes)
{
    for (uint32_t half = lanes / 2; half > 0; half /= 2) {
        for (uint32_t lane = 0; lane < half; lane++) {
            running[lane] += running[half + lane];
        }
    }
    return running[0];
}

/* Sum of exp(row - most). Starting from zero gives the same bits as starting from the first vector,
 * because exponentials are not negative. */
static float sum_of_exponentials(const float *row, uint64_t vocabulary, float most, uint32_t lanes)
{
    float buffer[BUFFER_ELEMENTS];
    float running[LANES_MAX] = {0};
    for (uint64_t at = 0; at < vocabulary; at += BUFFER_ELEMENTS) {
        uint64_t left = vocabulary - at;
        size_t count = left < BUFFER_ELEMENTS ? (size_t)left : BUFFER_ELEMENTS;
        chosen->exponentials(row + at, most, buffer, count);
        ms__loss_add_lanes(running, lanes, buffer, count);
    }
    return ms__loss_fold_lanes(running, lanes);
}

/* ---- rows ------------------------------------------------------------------------------ */

typedef struct work {
    const ms_loss_rows *rows;
    const float *by_picked; /* NULL in the forward */
    float *out;             /* picked, or the gradient */
    _Atomic uint64_t next_row;
} work;

static void forward_row(const ms_loss_rows *r, uint64_t i, float *picked)
{
    const float *row = r->logits + i * r->vocabulary;
    float most = chosen->largest(row, (size_t)r->vocabulary);
    float log_sum = ms__loss_log(sum_of_exponentials(row, r->vocabulary, most, r->lanes));
    r->largest[i] = most;
    r->log_sum[i] = log_sum;
    picked[i] = row[r->classes[i]] - most - log_sum;
}

/* torch sums the log-softmax's gradient over a row that has a single non-zero element. */
static void backward_row(const ms_loss_rows *r, uint64_t i, float by_picked, float *gradient)
{
    const float *row = r->logits + i * r->vocabulary;
    float *out = gradient + i * r->vocabulary;
    float most = r->largest[i];
    float log_sum = r->log_sum[i];
    float sum = 0.0f + by_picked;
    uint64_t class = (uint64_t)r->classes[i];
    float log_softmax = row[class] - most - log_sum;
    float softmax;
    chosen->exponentials(&log_softmax, 0.0f, &softmax, 1);
    chosen->gradient(row, most, log_sum, sum, out, (size_t)r->vocabulary);
    out[class] = fmaf(-softmax, sum, by_picked);
}

static void take_rows(void *argument)
{
    work *w = argument;
    for (;;) {
        uint64_t i = atomic_fetch_add_explicit(&w->next_row, 1, memory_order_relaxed);
        if (i >= w->rows->rows) {
            return;
        }
        if (w->by_picked == NULL) {
            forward_row(w->rows, i, w->out);
        } else {
            backward_row(w->rows, i, w->by_picked[i], w->out);
        }
    }
}

static int check_rows(const ms_loss_rows *r, const void *array, ms_error *err)
{
    if (r->lanes != 8 && r->lanes != LANES_MAX) {
        return ms_fail(err, MS_ENOTSUP, "loss head: vectors of %u lanes; known are 8 and 16", r->lanes);
    }
    if (r->vocabulary < r->lanes) {
        return ms_fail(err, MS_ENOTSUP, "loss head: %llu classes are fewer than the %u lanes",
                       (unsigned long long)r->vocabulary, r->lanes);
    }
    if (r->rows > 0 &&
        (r->logits == NULL || r->classes == NULL || r->largest == NULL || r->log_sum == NULL || array == NULL)) {
        return ms_fail(err, MS_EINVAL, "loss head: an array is missing");
    }
    for (uint64_t i = 0; i < r->rows; i++) {
        if (r->classes[i] < 0 || (uint64_t)r->classes[i] >= r->vocabulary) {
            return ms_fail(err, MS_EINVAL, "loss head: class %lld of row %llu is out of bounds",
                           (long long)r->classes[i], (unsigned long long)i);
        }
    }
    return MS_OK;
}

static void loss_run_rows(const ms_loss_rows *rows, const float *by_picked, float *out, uint32_t threads)
{
    ms__once_run(&chosen_once, loss_choose_kernels);
    work w = {.rows = rows, .by_picked = by_picked, .out = out};
    uint64_t useful = ms__mul_sat(rows->rows, rows->vocabulary) / ELEMENTS_PER_THREAD + 1;
    useful = useful < rows->rows ? useful : rows->rows;
    ms__crew_run(useful < threads ? (uint32_t)useful : threads, "ms-loss", take_rows, &w);
}

int ms_loss_forward(const ms_loss_rows *rows, float *picked, uint32_t threads, ms_error *err)
{
    int rc = check_rows(rows, picked, err);
    if (rc == MS_OK) {
        loss_run_rows(rows, NULL, picked, threads);
    }
    return rc;
}

int ms_loss_backward(const ms_loss_rows *rows, const float *by_picked, float *gradient, uint32_t threads, ms_error *err)
{
    int rc = check_rows(rows, gradient, err);
    if (rc == MS_OK && rows->rows > 0 && by_picked == NULL) {
        rc = ms_fail(err, MS_EINVAL, "loss head: an array is missing");
    }
    if (rc == MS_OK && rows->rows > 0) {
        loss_run_rows(rows, by_picked, gradient, threads);
    }
    return rc;
}
