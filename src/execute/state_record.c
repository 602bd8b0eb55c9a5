/* The layout of state_record.h. */
#include "execute/state_record.h"

#include <string.h>

#include "base/units.h"
#include "techniques/quantize8.h"

/* Arrays begin at cache lines. */
enum { PART_ALIGNMENT = 64, STRETCH = 1024 };

_Static_assert(STRETCH % MS_ADAMW_BLOCK == 0, "chunks hold whole blocks");

static uint64_t moment_bytes(const ms_optimizer_form *form, uint64_t elements)
{
    return form->moments == MS_ADAMW_MOMENTS_8BIT ? elements : ms__mul_sat(elements, sizeof(float));
}

uint64_t ms__record_part_bytes(const ms_optimizer_form *form, ms_optimizer_part part, uint64_t elements)
{
    switch (part) {
    case MS_PART_EXP_AVG:
    case MS_PART_EXP_AVG_SQ:
        return moment_bytes(form, elements);
    case MS_PART_MAX_EXP_AVG_SQ:
        return form->has_max_exp_avg_sq ? ms__mul_sat(elements, sizeof(float)) : 0;
    case MS_PART_EXTRA:
        switch (form->weights) {
        case MS_ADAMW_BF16_MASTER:
            return ms__mul_sat(elements, sizeof(float));
        case MS_ADAMW_BF16_SPLIT:
            return ms__mul_sat(elements, sizeof(int16_t));
        default:
            return 0;
        }
    case MS_PART_EXP_AVG_ABSMAX:
    case MS_PART_EXP_AVG_SQ_ABSMAX:
        return form->moments == MS_ADAMW_MOMENTS_8BIT ? ms__div_up(elements, MS_ADAMW_BLOCK) * sizeof(float) : 0;
    default:
        return 0;
    }
}

uint64_t ms__record_offsets(const ms_optimizer_form *form, uint64_t elements, uint64_t offsets[MS_PART_COUNT])
{
    uint64_t at = 0;
    for (int part = 0; part < MS_PART_COUNT; part++) {
        offsets[part] = at;
        at = ms__align_up(ms__add_sat(at, ms__record_part_bytes(form, (ms_optimizer_part)part, elements)),
                          PART_ALIGNMENT);
    }
    return at;
}

uint64_t ms__record_chunk_elements(const ms_optimizer_form *form)
{
    uint64_t offsets[MS_PART_COUNT];
    uint64_t stretches = MS_OPTIMIZER_CHUNK_BYTES / ms__record_offsets(form, STRETCH, offsets);
    while (ms__record_offsets(form, (stretches + 1) * STRETCH, offsets) <= MS_OPTIMIZER_CHUNK_BYTES) {
        stretches++;
    }
    return stretches * STRETCH;
}

void ms__record_fill_new(const ms_optimizer_form *form, uint64_t elements, unsigned char *record)
{
    uint64_t offsets[MS_PART_COUNT];
    memset(record, 0, ms__record_offsets(form, elements, offsets));
    if (form->moments == MS_ADAMW_MOMENTS_8BIT) {
        memset(record + offsets[MS_PART_EXP_AVG], ms__q8(true)->zero, elements);
        memset(record + offsets[MS_PART_EXP_AVG_SQ], ms__q8(false)->zero, elements);
    }
}

/* The address of element `at` in an array of the whole state. */
static const unsigned char *part_of(const ms_optimizer_form *form, const ms_adamw_tensor *source,
                                    ms_optimizer_part part, uint64_t at)
{
    const void *const arrays[MS_PART_COUNT] = {
        [MS_PART_EXP_AVG] = source->exp_avg,
        [MS_PART_EXP_AVG_SQ] = source->exp_avg_sq,
        [MS_PART_MAX_EXP_AVG_SQ] = source->max_exp_avg_sq,
        [MS_PART_EXTRA] = source->extra,
        [MS_PART_EXP_AVG_ABSMAX] = source->exp_avg_absmax,
        [MS_PART_EXP_AVG_SQ_ABSMAX] = source->exp_avg_sq_absmax,
    };
    const unsigned char *array = arrays[part];
    return array != NULL ? array + ms__record_part_bytes(form, part, at) : NULL;
}

void ms__record_fill_from(const ms_optimizer_form *form, const ms_adamw_tensor *source, uint64_t at, uint64_t elements,
                          unsigned char *record)
{
    uint64_t offsets[MS_PART_COUNT];
    ms__record_offsets(form, elements, offsets);
    for (int part = 0; part < MS_PART_COUNT; part++) {
        const unsigned char *from = part_of(form, source, (ms_optimizer_part)part, at);
        uint64_t bytes = ms__record_part_bytes(form, (ms_optimizer_part)part, elements);
        /* A record is no larger than a chunk; compilers see only that sums may saturate. */
        if (from != NULL && bytes > 0 && bytes <= MS_OPTIMIZER_CHUNK_BYTES) {
            memcpy(record + offsets[part], from, bytes);
        }
    }
}

ms_adamw_tensor ms__record_bind(const ms_optimizer_form *form, const ms_adamw_tensor *whole, uint64_t at,
                                uint64_t elements, unsigned char *record)
{
    uint64_t offsets[MS_PART_COUNT];
    ms__record_offsets(form, elements, offsets);
    const bool is_8bit = form->moments == MS_ADAMW_MOMENTS_8BIT;
    const uint64_t begin = at * (form->weights == MS_ADAMW_FP32 ? sizeof(float) : sizeof(uint16_t));
    unsigned char *parameter = whole->parameter, *gradient = whole->gradient;
    return (ms_adamw_tensor){
        .weights = form->weights,
        .moments = form->moments,
        .count = elements,
        .step = whole->step,
        .parameter = parameter != NULL ? parameter + begin : NULL,
        .gradient = gradient != NULL ? gradient + begin : NULL,
        .extra = form->weights != MS_ADAMW_FP32 ? record + offsets[MS_PART_EXTRA] : NULL,
        .exp_avg = record + offsets[MS_PART_EXP_AVG],
        .exp_avg_sq = record + offsets[MS_PART_EXP_AVG_SQ],
        .max_exp_avg_sq = form->has_max_exp_avg_sq ? (float *)(record + offsets[MS_PART_MAX_EXP_AVG_SQ]) : NULL,
        .exp_avg_absmax = is_8bit ? (float *)(record + offsets[MS_PART_EXP_AVG_ABSMAX]) : NULL,
        .exp_avg_sq_absmax = is_8bit ? (float *)(record + offsets[MS_PART_EXP_AVG_SQ_ABSMAX]) : NULL,
    };
}
