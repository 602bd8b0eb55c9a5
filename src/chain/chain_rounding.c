/*
 * How far a table may be from the sizes that it rounds. A schedule holds at most one thing
 * for each place between two layers, x_i or what layer i-1 saved, and all of them fit what
 * it takes: a knapsack, of which the relaxed optimum is enough. Called by chain.c, which
 * leaves out tables that can't change the answer.
 */
#include "base/units.h"
#include "chain/chain.h"

/* Where half a bucket at every place is less than this part of the units, that will do. */
enum { FEW = 64 };

typedef struct rounded {
    uint64_t weight; /* of the thing, in what limits the schedule */
    uint64_t change;
} rounded;

static rounded round_size(uint64_t size, uint64_t bucket, bool up)
{
    uint64_t rest = size % bucket, down_size = size - rest;
    uint64_t near = rest >= bucket - rest ? ms__add_sat(down_size, bucket) : down_size;
    return up ? (rounded){.weight = size, .change = ms__sub_sat(near, size)}
              : (rounded){.weight = near, .change = ms__sub_sat(size, near)};
}

/* Products of 64-bit numbers. */
__extension__ typedef unsigned __int128 wide;

/* The most that the change of one thing is above its share of the price; `inverse` is 2^64 over
 * the price, rounded down: a division for each thing is what this would take its time for. */
static uint64_t gain(const rounded *r, uint64_t inverse)
{
    return ms__sub_sat(r->change, (uint64_t)((wide)r->weight * inverse >> 64));
}

/* What may be at a place, and where the things of the next begin. */
typedef struct places {
    rounded *things;
    uint32_t *ends; /* [layers - 1] */
    uint32_t count;
} places;

static void add_thing(places *at, uint64_t size, uint64_t bucket, uint64_t units, bool up)
{
    rounded r = round_size(size, bucket, up);
    if (r.weight <= units && r.change > 0) {
        at->things[at->count++] = r;
    }
}

static int list_things(const ms__chain_model *model, uint64_t bucket, uint64_t units, bool up, places *at)
{
    size_t most = model->count;
    for (uint32_t i = 0; i < model->count; i++) {
        most += model->steps[i].end - model->steps[i].first;
    }
    at->things = ms_malloc(most * sizeof *at->things);
    at->ends = ms_malloc(model->count * sizeof *at->ends);
    if (at->things == NULL || at->ends == NULL) {
        return MS_ENOMEM;
    }
    for (uint32_t i = 0; i + 1 < model->count; i++) {
        add_thing(at, model->sizes[i + 1], bucket, units, up);
        for (uint32_t k = model->steps[i].first; k < model->steps[i].end; k++) {
            add_thing(at, model->choices[k].saved, bucket, units, up);
        }
        at->ends[i] = at->count;
    }
    return MS_OK;
}

/* Below this nothing is worth its price. */
static uint64_t first_price(const places *at)
{
    uint64_t least = UINT64_MAX / 4;
    for (uint32_t i = 0; i < at->count; i++) {
        least = ms__min_u64(least, at->things[i].weight / at->things[i].change);
    }
    return ms__max_u64(least, 2);
}

/* At a price of 1/price per unit: never below the optimum, whatever the price. */
static uint64_t at_price(const places *at, uint32_t places_count, uint64_t units, uint64_t price)
{
    uint64_t sum = units / price + 1, inverse = UINT64_MAX / price;
    for (uint32_t i = 0, n = 0; i < places_count; i++) {
        uint64_t most = 0;
        for (; n < at->ends[i]; n++) {
            most = ms__max_u64(most, gain(&at->things[n], inverse));
        }
        sum = ms__add_sat(sum, most);
    }
    return sum;
}

uint64_t ms__chain_rounding(const ms__chain_model *model, uint64_t bucket, uint64_t units, bool up)
{
    uint64_t plain = ms__chain_rounding_most(model, bucket);
    if (plain <= units / FEW) {
        return plain;
    }
    places at = {0};
    uint64_t least = UINT64_MAX;
    /* Convex in 1/price: behind the least it only grows. Without memory nothing is known. */
    bool falls = list_things(model, bucket, units, up, &at) == MS_OK;
    for (uint64_t price = first_price(&at); falls && price < UINT64_MAX / 2; price += price / 2) {
        uint64_t sum = at_price(&at, model->count - 1, units, price);
        falls = sum <= least;
        least = ms__min_u64(least, sum);
    }
    ms_free(at.things);
    ms_free(at.ends);
    /* One sum is rounded beside what is held. */
    return ms__add_sat(least, bucket / 2);
}
