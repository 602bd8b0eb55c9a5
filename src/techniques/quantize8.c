/*
 * Computes the maps from their definition, and the bucket tables from the maps, once per process.
 * Called by adamw.c; has no other state.
 */
#include "techniques/quantize8.h"

#include <math.h>

#include "base/thread.h"

enum { DECADES = 7, VALUES_MAX = 256 };

static ms__q8_table tables[2]; /* [is_signed] */
static ms__once tables_made = MS__ONCE_INIT;

/* Boundary `i` of [0.1, 1] cut into `parts`: from the nearer end, as torch.linspace
 * computes it, so that the maps have the published bits. */
static float boundary_of(int i, int parts)
{
    float step = (1.0f - 0.1f) / (float)parts;
    return i < (parts + 1) / 2 ? fmaf(step, (float)i, 0.1f) : fmaf(-step, (float)(parts - i), 1.0f);
}

/* The positive values of one decade, [0.1, 1] * 10^(decade - 6), cut into `parts`:
 * the middles of the parts. */
static size_t add_decade(float *values, size_t count, int decade, int parts)
{
    float power = (float)pow(10.0, decade - (DECADES - 1));
    for (int i = 0; i < parts; i++) {
        values[count++] = power * ((boundary_of(i, parts) + boundary_of(i + 1, parts)) / 2.0f);
    }
    return count;
}

/* Zero, all decades, one: ascending. */
static size_t positive_values(float *values, bool is_signed)
{
    size_t count = 0;
    values[count++] = 0.0f;
    for (int decade = 0; decade < DECADES; decade++) {
        count = add_decade(values, count, decade, 1 << (is_signed ? decade : decade + 1));
    }
    values[count++] = 1.0f;
    return count;
}

static float bucket_start(int bucket)
{
    union {
        uint32_t bits;
        float value;
    } start = {.bits = (uint32_t)(bucket + MS__Q8_FIRST) << MS__Q8_BUCKET_SHIFT};
    return start.value;
}

static void make_table(ms__q8_table *table, bool is_signed)
{
    float positive[VALUES_MAX];
    size_t count = positive_values(positive, is_signed);
    /* Mirrored, except zero and one. */
    size_t negatives = is_signed ? count - 2 : 0;
    for (size_t i = 0; i < negatives; i++) {
        table->value[i] = -positive[count - 2 - i];
    }
    for (size_t i = 0; i < count; i++) {
        table->value[negatives + i] = positive[i];
    }
    for (size_t i = 0; i < MS__Q8_VALUES; i++) {
        table->boundary[i] = i + 1 < count ? (positive[i] + positive[i + 1]) * 0.5f : INFINITY;
    }
    for (int bucket = 0, rank = 0; bucket < MS__Q8_BUCKETS; bucket++) {
        while (table->boundary[rank] < bucket_start(bucket)) {
            rank++;
        }
        table->rank[bucket] = rank;
    }
    table->zero = (int32_t)negatives;
    table->least = is_signed ? 0 : 1;
    table->most_negative = (int32_t)negatives;
}

static void make_tables(void)
{
    make_table(&tables[0], false);
    make_table(&tables[1], true);
}

const ms__q8_table *ms__q8(bool is_signed)
{
    ms__once_run(&tables_made, make_tables);
    return &tables[is_signed];
}
