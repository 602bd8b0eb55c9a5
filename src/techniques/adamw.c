/*
 * ms_adamw_step: checks the tensors, cuts them into pieces, and lets a few threads take piece
 * after piece. The Python optimizer calls it through ext; the arithmetic is in adamw_kernels.h.
 */
#include "memscale/optimizer.h"

#include <math.h>
#include <stdatomic.h>

#include "base/thread.h"
#include "base/units.h"
#include "hardware/isa.h"
#include "techniques/adamw.h"
#include "techniques/crew.h"

enum {
    /* A thread takes this many elements at a time; whole blocks. */
    PIECE_ELEMENTS = 64 * 1024,
    /* For fewer, starting another thread (about 30 us) does not pay. */
    ELEMENTS_PER_THREAD = 256 * 1024,
    /* Elements whose buffers fit the first-level cache; whole blocks. */
    BUFFER_ELEMENTS = 1024,
};

_Static_assert(PIECE_ELEMENTS % BUFFER_ELEMENTS == 0 && BUFFER_ELEMENTS % MS_ADAMW_BLOCK == 0,
               "pieces and buffers hold whole blocks");

typedef struct work {
    const ms_adamw_group *group;
    const ms_adamw_tensor *tensors;
    const ms__adamw_constants *constants; /* one per tensor */
    const uint64_t *first_piece;          /* of each tensor, then the total */
    size_t count;
    const ms__adamw_kernels *kernels;
    _Atomic uint64_t next_piece;
} work;

/* ---- checks --------------------------------------------------------------------- */

static int check_group(const ms_adamw_group *group, ms_error *err)
{
    const struct {
        const char *name;
        double value;
        bool is_fraction;
    } numbers[] = {
        {"lr", group->lr, false},
        {"beta1", group->beta1, true},
        {"beta2", group->beta2, true},
        {"eps", group->eps, false},
        {"weight_decay", group->weight_decay, false},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        double value = numbers[i].value;
        if (!(value >= 0.0) || (numbers[i].is_fraction && !(value < 1.0))) {
            return ms_fail(err, MS_EINVAL, "AdamW: %s is %g; allowed are numbers of at least 0%s", numbers[i].name,
                           value, numbers[i].is_fraction ? " and below 1" : "");
        }
    }
    return MS_OK;
}

static const char *missing_array(const ms_adamw_tensor *t)
{
    const bool is_8bit = t->moments == MS_ADAMW_MOMENTS_8BIT;
    if (t->parameter == NULL || t->gradient == NULL) {
        return "the parameter or its gradient";
    }
    if (t->exp_avg == NULL || t->exp_avg_sq == NULL) {
        return "a moment";
    }
    if (t->weights != MS_ADAMW_FP32 && t->extra == NULL) {
        return "the master or the low bits";
    }
    if (is_8bit && (t->exp_avg_absmax == NULL || t->exp_avg_sq_absmax == NULL)) {
        return "the scales of the blocks";
    }
    return NULL;
}

static int check_tensor(const ms_adamw_tensor *t, size_t index, ms_error *err)
{
    if ((unsigned)t->weights >= MS_ADAMW_WEIGHTS_COUNT || (unsigned)t->moments >= MS_ADAMW_MOMENTS_COUNT) {
        return ms_fail(err, MS_EINVAL, "AdamW: tensor %zu is of an unknown kind", index);
    }
    if (t->step == 0) {
        return ms_fail(err, MS_EINVAL, "AdamW: tensor %zu: steps count from 1", index);
    }
    if (t->count > SIZE_MAX / sizeof(float)) {
        return ms_fail(err, MS_EOVERFLOW, "AdamW: tensor %zu has %llu elements", index, (unsigned long long)t->count);
    }
    const char *missing = t->count > 0 ? missing_array(t) : NULL;
    if (missing != NULL) {
        return ms_fail(err, MS_EINVAL, "AdamW: tensor %zu lacks %s", index, missing);
    }
    if (t->moments == MS_ADAMW_MOMENTS_8BIT && t->max_exp_avg_sq != NULL) {
        return ms_fail(err, MS_EINVAL, "AdamW: tensor %zu: amsgrad has no 8-bit form", index);
    }
    return MS_OK;
}

/* ---- constants ------------------------------------------------------------------- */

/* In double wherever torch computes in double, then rounded once. */
static ms__adamw_constants constants_of(const ms_adamw_group *group, uint64_t step)
{
    float lerp = (float)(1.0 - group->beta1);
    bool from_gradient = lerp >= 0.5f;
    double correction1 = 1.0 - pow(group->beta1, (double)step);
    double correction2 = 1.0 - pow(group->beta2, (double)step);
    return (ms__adamw_constants){
        .decay = (float)(1.0 - group->lr * group->weight_decay),
        .sign = group->maximize ? -1.0f : 1.0f,
        .lerp = from_gradient ? lerp - 1.0f : lerp,
        .lerp_from_gradient = from_gradient,
        .beta2 = (float)group->beta2,
        .one_minus_beta2 = (float)(1.0 - group->beta2),
        .root_scale = (float)(1.0 / sqrt(correction2)),
        .eps = (float)group->eps,
        .minus_step_size = (float)-(group->lr / correction1),
    };
}

/* ---- one piece --------------------------------------------------------------------- */

typedef struct buffers {
    _Alignas(64) float p[BUFFER_ELEMENTS];
    _Alignas(64) float g[BUFFER_ELEMENTS];
    _Alignas(64) float m[BUFFER_ELEMENTS];
    _Alignas(64) float v[BUFFER_ELEMENTS];
} buffers;

static float *load_parameter(const ms__adamw_kernels *k, const ms_adamw_tensor *t, uint64_t at, size_t count,
                             buffers *room)
{
    const uint16_t *bf16 = (const uint16_t *)t->parameter + at;
    switch (t->weights) {
    case MS_ADAMW_BF16_MASTER: {
        float *master = (float *)t->extra + at;
        k->master_adopt(bf16, master, count);
        return master;
    }
    case MS_ADAMW_BF16_SPLIT:
        k->split_load(bf16, (const int16_t *)t->extra + at, room->p, count);
        return room->p;
    default:
        return (float *)t->parameter + at;
    }
}

static void store_parameter(const ms__adamw_kernels *k, const ms_adamw_tensor *t, uint64_t at, size_t count,
                            const float *p)
{
    uint16_t *bf16 = (uint16_t *)t->parameter + at;
    if (t->weights == MS_ADAMW_BF16_MASTER) {
        k->bf16_store(p, bf16, count);
    } else if (t->weights == MS_ADAMW_BF16_SPLIT) {
        k->split_store(p, bf16, (int16_t *)t->extra + at, count);
    }
}

/* torch unscales in the gradient's own type, then computes with the stored value. */
static const float *load_gradient(const ms__adamw_kernels *k, const ms_adamw_tensor *t, uint64_t at, size_t count,
                                  double grad_scale, buffers *room)
{
    if (t->weights == MS_ADAMW_FP32) {
        float *gradient = (float *)t->gradient + at;
        if (grad_scale != 1.0) {
            k->divide(gradient, count, (float)grad_scale);
        }
        return gradient;
    }
    uint16_t *gradient = (uint16_t *)t->gradient + at;
    k->bf16_load(gradient, room->g, count);
    if (grad_scale != 1.0) {
        k->divide(room->g, count, (float)grad_scale);
        k->bf16_store(room->g, gradient, count);
        k->bf16_load(gradient, room->g, count);
    }
    return room->g;
}

static float *offset_or_null(float *array, uint64_t at)
{
    return array != NULL ? array + at : NULL;
}

static void update_8bit(const work *w, const ms_adamw_tensor *t, const ms__adamw_constants *c, uint64_t at,
                        size_t count, float *p, const float *g, buffers *room)
{
    const ms__adamw_kernels *k = w->kernels;
    const ms__q8_table *signed_table = ms__q8(true);
    const ms__q8_table *unsigned_table = ms__q8(false);
    for (size_t i = 0; i < count; i += MS_ADAMW_BLOCK) {
        size_t part = count - i < MS_ADAMW_BLOCK ? count - i : MS_ADAMW_BLOCK;
        uint64_t block = (at + i) / MS_ADAMW_BLOCK;
        uint8_t *first = (uint8_t *)t->exp_avg + at + i;
        uint8_t *second = (uint8_t *)t->exp_avg_sq + at + i;
        k->dequantize(first, t->exp_avg_absmax[block], signed_table, room->m, part);
        k->dequantize(second, t->exp_avg_sq_absmax[block], unsigned_table, room->v, part);
        k->update(p + i, g + i, room->m, room->v, NULL, part, c);
        t->exp_avg_absmax[block] = k->quantize(room->m, signed_table, first, part);
        t->exp_avg_sq_absmax[block] = k->quantize(room->v, unsigned_table, second, part);
    }
}

static void adamw_run_part(const work *w, size_t index, uint64_t at, size_t count, buffers *room)
{
    const ms_adamw_tensor *t = &w->tensors[index];
    const ms__adamw_constants *c = &w->constants[index];
    float *p = load_parameter(w->kernels, t, at, count, room);
    const float *g = load_gradient(w->kernels, t, at, count, w->group->grad_scale, room);
    if (t->moments == MS_ADAMW_MOMENTS_8BIT) {
        update_8bit(w, t, c, at, count, p, g, room);
    } else {
        w->kernels->update(p, g, (float *)t->exp_avg + at, (float *)t->exp_avg_sq + at,
                           offset_or_null(t->max_exp_avg_sq, at), count, c);
    }
    store_parameter(w->kernels, t, at, count, p);
}

static void adamw_run_piece(const work *w, size_t index, uint64_t at, buffers *room)
{
    const ms_adamw_tensor *t = &w->tensors[index];
    uint64_t end = t->count - at < PIECE_ELEMENTS ? t->count : at + PIECE_ELEMENTS;
    for (; at < end; at += BUFFER_ELEMENTS) {
        size_t count = end - at < BUFFER_ELEMENTS ? (size_t)(end - at) : BUFFER_ELEMENTS;
        adamw_run_part(w, index, at, count, room);
    }
}

/* ---- threads ------------------------------------------------------------------------ */

static void take_pieces(void *argument)
{
    work *w = argument;
    buffers room;
    size_t index = 0;
    for (;;) {
        uint64_t piece = atomic_fetch_add_explicit(&w->next_piece, 1, memory_order_relaxed);
        if (piece >= w->first_piece[w->count]) {
            return;
        }
        while (piece >= w->first_piece[index + 1]) {
            index++;
        }
        adamw_run_piece(w, index, (piece - w->first_piece[index]) * PIECE_ELEMENTS, &room);
    }
}

static uint32_t useful_threads(uint64_t elements, uint32_t threads)
{
    uint64_t useful = elements / ELEMENTS_PER_THREAD + 1;
    return useful < threads ? (uint32_t)useful : threads;
}

const ms__adamw_kernels *ms__adamw_select(uint32_t isa)
{
    (void)isa;
#if defined(__x86_64__)
    if (isa & MS_ISA_AVX512F) {
        return &ms__adamw_avx512;
    }
    if (isa & MS_ISA_AVX2) {
        return &ms__adamw_avx2;
    }
#endif
#if defined(__aarch64__)
    if (isa & MS_ISA_NEON) {
        return &ms__adamw_neon;
    }
#endif
    return &ms__adamw_plain;
}

static const ms__adamw_kernels *chosen;
static ms__once chosen_once = MS__ONCE_INIT;

static void adamw_choose_kernels(void)
{
    chosen = ms__adamw_select(ms__isa_detect());
}

/* Chosen once: in a virtual machine the query takes as long as a small step. */
static const ms__adamw_kernels *adamw_kernels(void)
{
    ms__once_run(&chosen_once, adamw_choose_kernels);
    return chosen;
}

/* Fills constants and the first piece of each tensor; returns the total of elements. */
static uint64_t adamw_prepare(const ms_adamw_group *group, const ms_adamw_tensor *tensors, size_t count,
                              ms__adamw_constants *constants, uint64_t *first_piece)
{
    uint64_t elements = 0;
    uint64_t pieces = 0;
    for (size_t i = 0; i < count; i++) {
        constants[i] = constants_of(group, tensors[i].step);
        first_piece[i] = pieces;
        elements += tensors[i].count;
        pieces += tensors[i].count / PIECE_ELEMENTS + (tensors[i].count % PIECE_ELEMENTS != 0);
    }
    first_piece[count] = pieces;
    return elements;
}

int ms_adamw_step(const ms_adamw_group *group, const ms_adamw_tensor *tensors, size_t count, uint32_t threads,
                  ms_error *err)
{
    int rc = check_group(group, err);
    for (size_t i = 0; rc == MS_OK && i < count; i++) {
        rc = check_tensor(&tensors[i], i, err);
    }
    if (rc != MS_OK || count == 0) {
        return rc;
    }
    ms__adamw_constants *constants = ms_calloc(count, sizeof *constants);
    uint64_t *first_piece = ms_calloc(count + 1, sizeof *first_piece);
    if (constants == NULL || first_piece == NULL) {
        rc = ms_fail(err, MS_ENOMEM, "AdamW: %zu tensors", count);
        goto cleanup;
    }
    work w = {
        .group = group,
        .tensors = tensors,
        .constants = constants,
        .first_piece = first_piece,
        .count = count,
        .kernels = adamw_kernels(),
    };
    uint64_t elements = adamw_prepare(group, tensors, count, constants, first_piece);
    ms__crew_run(useful_threads(elements, threads), "ms-adamw", take_pieces, &w);
cleanup:
    ms_free(first_piece);
    ms_free(constants);
    return rc;
}

/* ---- 8-bit codes ----------------------------------------------------------------------- */

int ms_adamw_choose_moments(uint64_t elements, uint32_t bits, ms_adamw_moments *out, ms_error *err)
{
    if (bits != 8 && bits != 32) {
        return ms_fail(err, MS_EINVAL, "AdamW: state_bits is %u; allowed are 8 and 32", bits);
    }
    *out = bits == 8 && elements >= MS_ADAMW_8BIT_LEAST_ELEMENTS ? MS_ADAMW_MOMENTS_8BIT : MS_ADAMW_MOMENTS_FP32;
    return MS_OK;
}

uint64_t ms_adamw_state_bytes(uint64_t elements, uint32_t bits, bool is_split)
{
    enum { MOMENTS = 2, LOW_BYTES = 2 };
    bool is_8bit = bits == 8 && elements >= MS_ADAMW_8BIT_LEAST_ELEMENTS;
    uint64_t scales = ms__mul_sat(sizeof(float), ms__div_up(elements, MS_ADAMW_BLOCK));
    uint64_t moment = is_8bit ? ms__add_sat(elements, scales) : ms__mul_sat(sizeof(float), elements);
    return ms__add_sat(ms__mul_sat(MOMENTS, moment), is_split ? ms__mul_sat(LOW_BYTES, elements) : 0);
}

static size_t block_part_elements(uint64_t at, uint64_t count)
{
    return count - at < MS_ADAMW_BLOCK ? (size_t)(count - at) : MS_ADAMW_BLOCK;
}

int ms_adamw_quantize(const float *values, uint64_t count, bool is_signed, uint8_t *codes, float *absmax, ms_error *err)
{
    if (count > 0 && (values == NULL || codes == NULL || absmax == NULL)) {
        return ms_fail(err, MS_EINVAL, "AdamW: quantize lacks an array");
    }
    const ms__adamw_kernels *k = adamw_kernels();
    for (uint64_t at = 0; at < count; at += MS_ADAMW_BLOCK) {
        absmax[at / MS_ADAMW_BLOCK] =
            k->quantize(values + at, ms__q8(is_signed), codes + at, block_part_elements(at, count));
    }
    return MS_OK;
}

int ms_adamw_dequantize(const uint8_t *codes, const float *absmax, uint64_t count, bool is_signed, float *values,
                        ms_error *err)
{
    if (count > 0 && (values == NULL || codes == NULL || absmax == NULL)) {
        return ms_fail(err, MS_EINVAL, "AdamW: dequantize lacks an array");
    }
    const ms__adamw_kernels *k = adamw_kernels();
    for (uint64_t at = 0; at < count; at += MS_ADAMW_BLOCK) {
        k->dequantize(codes + at, absmax[at / MS_ADAMW_BLOCK], ms__q8(is_signed), values + at,
                      block_part_elements(at, count));
    }
    return MS_OK;
}

const float *ms_adamw_map(bool is_signed)
{
    return ms__q8(is_signed)->value;
}
