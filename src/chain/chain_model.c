/*
 * The chain as the solver sees it: sizes in units, options that can be of use, equal
 * layers known as equal, and segments of equal layers as classes. Made once for an
 * answer by chain.c; the budget plays no part.
 */
#include <string.h>

#include "base/parts.h"
#include "base/units.h"
#include "chain/chain.h"

/* ---- units ---------------------------------------------------------------------------- */

/* UINT64_MAX stands for "never fits" and has no part in the unit. */
static uint64_t common(uint64_t a, uint64_t b)
{
    if (b == UINT64_MAX) {
        return a;
    }
    while (b != 0) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static uint64_t find_unit(const ms_chain *chain)
{
    uint64_t unit = common(0, chain->input_bytes);
    for (uint32_t i = 0; i < chain->layer_count && unit != 1; i++) {
        const ms_chain_layer *layer = &chain->layers[i];
        unit = common(common(unit, layer->output_bytes), layer->fwd_tmp_bytes);
        for (uint32_t k = 0; k < layer->option_count; k++) {
            const ms_chain_option *o = &layer->options[k];
            unit = common(common(common(unit, o->saved_bytes), o->fwd_tmp_bytes), o->bwd_tmp_bytes);
        }
    }
    return unit == 0 ? 1 : unit;
}

static uint64_t in_units(const ms__chain_model *model, uint64_t bytes)
{
    return bytes == UINT64_MAX ? bytes : bytes / model->unit_bytes;
}

/* ---- options ---------------------------------------------------------------------------- */

static bool no_worse(const ms__chain_choice *a, const ms__chain_choice *b)
{
    return a->ns <= b->ns && a->saved <= b->saved && a->fwd_tmp <= b->fwd_tmp && a->bwd_tmp <= b->bwd_tmp;
}

/* Adds the choice unless one before it is no worse, and drops those that it makes idle. */
static uint32_t add_choice(ms__chain_choice *kept, uint32_t count, const ms__chain_choice *choice)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (no_worse(&kept[i], choice)) {
            return count;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        if (!no_worse(choice, &kept[i])) {
            kept[left++] = kept[i];
        }
    }
    kept[left] = *choice;
    return left + 1;
}

static void read_step(const ms_chain *chain, ms__chain_model *model, uint32_t i)
{
    const ms_chain_layer *layer = &chain->layers[i];
    ms__chain_step *step = &model->steps[i];
    ms__chain_choice *kept = &model->choices[step->first];
    uint32_t count = 0;
    step->fastest_ns = UINT64_MAX;
    for (uint32_t k = 0; k < layer->option_count; k++) {
        const ms_chain_option *o = &layer->options[k];
        ms__chain_choice choice = {
            .saved = in_units(model, o->saved_bytes),
            .fwd_tmp = in_units(model, o->fwd_tmp_bytes),
            .bwd_tmp = in_units(model, o->bwd_tmp_bytes),
            .ns = ms__add_sat(o->fwd_ns, o->bwd_ns),
            .option = k,
        };
        count = add_choice(kept, count, &choice);
        step->fastest_ns = ms__min_u64(step->fastest_ns, choice.ns);
    }
    step->end = step->first + count;
}

/* ---- types of layers ----------------------------------------------------------------------- */

static bool same_option(const ms_chain_option *a, const ms_chain_option *b)
{
    return a->saved_bytes == b->saved_bytes && a->fwd_ns == b->fwd_ns && a->bwd_ns == b->bwd_ns &&
           a->fwd_tmp_bytes == b->fwd_tmp_bytes && a->bwd_tmp_bytes == b->bwd_tmp_bytes;
}

static bool same_layer(const ms_chain_layer *a, const ms_chain_layer *b)
{
    bool same = a->output_bytes == b->output_bytes && a->fwd_ns == b->fwd_ns && a->fwd_tmp_bytes == b->fwd_tmp_bytes &&
                a->option_count == b->option_count;
    for (uint32_t k = 0; same && k < a->option_count; k++) {
        same = same_option(&a->options[k], &b->options[k]);
    }
    return same;
}

/* Index of the first layer that layer i equals. */
static uint32_t type_of(const ms_chain *chain, const ms__chain_model *model, uint32_t i)
{
    uint32_t k = 0;
    while (k < i && (model->steps[k].type != k || !same_layer(&chain->layers[k], &chain->layers[i]))) {
        k++;
    }
    return k;
}

static void read_layers(const ms_chain *chain, ms__chain_model *model)
{
    uint32_t used = 0;
    model->sizes[0] = in_units(model, chain->input_bytes);
    for (uint32_t i = 0; i < chain->layer_count; i++) {
        const ms_chain_layer *layer = &chain->layers[i];
        ms__chain_step *step = &model->steps[i];
        uint32_t type = type_of(chain, model, i);
        model->sizes[i + 1] = in_units(model, layer->output_bytes);
        if (type < i) {
            *step = model->steps[type];
            continue;
        }
        *step = (ms__chain_step){.pass_ns = layer->fwd_ns, .type = i, .first = used};
        step->pass_tmp = in_units(model, layer->fwd_tmp_bytes);
        read_step(chain, model, i);
        used = step->end;
    }
}

/* ---- sizes of segments ------------------------------------------------------------------------ */

/* x_{t+1} + max(x_{s+1} + f_s, inner), where inner is the most of x_j + x_{j+1} + f_j between. */
static uint64_t none_of(const ms__chain_model *model, uint32_t s, uint32_t t, uint64_t inner)
{
    uint64_t first = ms__add_sat(model->sizes[s + 1], model->steps[s].pass_tmp);
    return ms__add_sat(model->sizes[t + 1], ms__max_u64(first, inner));
}

static uint64_t pass_size(const ms__chain_model *model, uint32_t j)
{
    return ms__add_sat(ms__add_sat(model->sizes[j], model->sizes[j + 1]), model->steps[j].pass_tmp);
}

/* ---- classes of segments ------------------------------------------------------------------------ */

/* Class of (the class of s..t-1, type of t): open addressing, the key beside the value. */
typedef struct place {
    uint64_t key; /* 0 is empty */
    uint32_t class_id;
} place;

typedef struct places {
    place *items;
    size_t mask;
} places;

static uint32_t *intern(const places *table, uint32_t prefix, uint32_t type)
{
    uint64_t key = ((uint64_t)(prefix + 1) << 32 | type) + 1;
    size_t at = (size_t)((key * UINT64_C(0x9E3779B97F4A7C15)) >> 24) & table->mask;
    while (table->items[at].key != 0 && table->items[at].key != key) {
        at = (at + 1) & table->mask;
    }
    if (table->items[at].key == 0) {
        table->items[at].key = key;
        table->items[at].class_id = UINT32_MAX;
    }
    return &table->items[at].class_id;
}

static void add_class(ms__chain_model *model, uint32_t s, uint32_t t, uint64_t inner)
{
    uint32_t id = model->class_count++;
    model->starts[id] = s;
    model->ends[id] = t;
    model->none[id] = none_of(model, s, t, inner);
    model->work += t - s + model->steps[s].end - model->steps[s].first;
}

static size_t segments_of(const ms__chain_model *model)
{
    return (size_t)model->count * (model->count + 1) / 2;
}

static void classify(ms__chain_model *model, const places *table)
{
    model->class_count = 0;
    model->work = 0;
    memset(table->items, 0, (table->mask + 1) * sizeof *table->items);
    for (uint32_t s = model->count; s-- > 0;) {
        uint32_t prefix = UINT32_MAX;
        uint64_t inner = 0;
        for (uint32_t t = s; t < model->count; t++) {
            inner = t > s + 1 ? ms__max_u64(inner, pass_size(model, t - 1)) : inner;
            uint32_t *id = intern(table, prefix, model->steps[t].type);
            if (*id == UINT32_MAX) {
                *id = model->class_count;
                add_class(model, s, t, inner);
            }
            prefix = *id;
            model->class_of[ms__chain_segment(model->count, s, t)] = prefix;
        }
    }
}

static bool types_differ(const ms__chain_model *model)
{
    for (uint32_t i = 0; i < model->count; i++) {
        if (model->steps[i].type != i) {
            return false;
        }
    }
    return true;
}

/* Every segment is its own class. */
static void number_segments(ms__chain_model *model)
{
    model->class_count = 0;
    model->work = 0;
    for (uint32_t s = model->count; s-- > 0;) {
        uint64_t inner = 0;
        for (uint32_t t = s; t < model->count; t++) {
            inner = t > s + 1 ? ms__max_u64(inner, pass_size(model, t - 1)) : inner;
            model->class_of[model->class_count] = model->class_count;
            add_class(model, s, t, inner);
        }
    }
}

/* Where few segments are equal, solving them again costs less than their disorder. */
static int find_classes(ms__chain_model *model)
{
    places table = {.mask = 1023};
    if (!types_differ(model)) {
        while (table.mask < 2 * segments_of(model)) {
            table.mask = 2 * table.mask + 1;
        }
        table.items = ms_calloc(table.mask + 1, sizeof *table.items);
        if (table.items == NULL) {
            return MS_ENOMEM;
        }
        classify(model, &table);
        ms_free(table.items);
        if (model->class_count <= segments_of(model) / 2) {
            return MS_OK;
        }
        for (uint32_t i = 0; i < model->count; i++) {
            model->steps[i].type = i;
        }
    }
    number_segments(model);
    return MS_OK;
}

/* ---- all of it ----------------------------------------------------------------------------------- */

static void lay_out(const ms_chain *chain, ms__chain_model *model, ms__parts *parts)
{
    size_t layers = chain->layer_count, segments = layers * (layers + 1) / 2, options = 0;
    for (size_t i = 0; i < layers; i++) {
        options += chain->layers[i].option_count;
    }
    model->sizes = MS__PART(parts, model->sizes, layers + 1);
    model->steps = MS__PART(parts, model->steps, layers);
    model->choices = MS__PART(parts, model->choices, options);
    model->class_of = MS__PART(parts, model->class_of, segments);
    model->starts = MS__PART(parts, model->starts, segments);
    model->ends = MS__PART(parts, model->ends, segments);
    model->none = MS__PART(parts, model->none, segments);
    model->block = parts->block;
}

static bool reserve(const ms_chain *chain, ms__chain_model *model)
{
    ms__parts parts = {0};
    lay_out(chain, model, &parts);
    if (!ms__parts_allocate(&parts)) {
        return false;
    }
    lay_out(chain, model, &parts);
    return true;
}

int ms__chain_model_make(const ms_chain *chain, ms__chain_model *model)
{
    memset(model, 0, sizeof *model);
    model->count = chain->layer_count;
    int rc = reserve(chain, model) ? MS_OK : MS_ENOMEM;
    if (rc == MS_OK) {
        model->unit_bytes = find_unit(chain);
        read_layers(chain, model);
        rc = find_classes(model);
    }
    if (rc != MS_OK) {
        ms__chain_model_clear(model);
    }
    return rc;
}

void ms__chain_model_clear(ms__chain_model *model)
{
    ms_free(model->block);
    memset(model, 0, sizeof *model);
}
