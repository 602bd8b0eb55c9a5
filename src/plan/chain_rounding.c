/*
 * How far a table may be from the sizes that it rounds. A schedule holds at most one thing
 * for each place between two layers, x_i or what layer i-1 saved, and all of them fit what
 * it takes: a knapsack, of which the relaxed optimum is enough. Called by chain.c, which
 * leaves out tables that can't change the answer.
 */
#include "base/units.h"
#include "plan/chain.h"

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

/* The most that the change of one thing is above its share of the price. */
static uint64_t gain(uint64_t size, uint64_t bucket, uint64_t units, bool up, uint64_t price)
{
    rounded r = round_size(size, bucket, up);
    return r.weight > units ? 0 : ms__sub_sat(r.change, r.weight / price);
}

/* At a price of 1/price per unit: never below the optimum, whatever the price. */
static uint64_t at_price(const ms__chain_model *model, uint64_t bucket, uint64_t units, bool up, uint64_t price)
{
    uint64_t sum = units / price + 1;
    for (uint32_t i = 0; i + 1 < model->count; i++) {
        uint64_t most = gain(model->sizes[i + 1], bucket, units, up, price);
        for (uint32_t k = model->steps[i].first; k < model->steps[i].end; k++) {
            most = ms__max_u64(most, gain(model->choices[k].saved, bucket, units, up, price));
        }
        sum = ms__add_sat(sum, most);
    }
    return sum;
}

uint64_t ms__chain_rounding(const ms__chain_model *model, uint64_t bucket, uint64_t units, bool up)
{
    uint64_t least = UINT64_MAX;
    if (bucket == 1) {
        return 0;
    }
    for (uint64_t price = 2; price < UINT64_MAX / 2; price += price / 2) {
        least = ms__min_u64(least, at_price(model, bucket, units, up, price));
    }
    /* One sum is rounded beside what is held. */
    return ms__add_sat(least, bucket / 2);
}
