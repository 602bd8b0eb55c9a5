/* The choice of portion.h. */
#include "base/portion.h"

#include "base/units.h"

/*
 * The items in an order that spreads every beginning of it over the list: steps of about the list's golden section, which
 * reach each item once. So the portions of two wanted sizes differ by little more than the sizes do.
 */
typedef struct spread {
    size_t count, step, at;
} spread;

static size_t common_divisor(size_t a, size_t b)
{
    while (b != 0) {
        size_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static spread spread_over(size_t count)
{
    size_t step = (size_t)ms__mul_div(count, 618034, 1000000);
    while (count > 0 && common_divisor(count, step) != 1) {
        step++;
    }
    return (spread){.count = count, .step = step};
}

static size_t next_of(spread *order)
{
    size_t at = order->at;
    order->at = (at + order->step) % order->count;
    return at;
}

/* Takes items as long as they do not exceed `wanted`. */
static uint64_t take_up_to(const void *items, size_t count, ms__item_bytes bytes_of, uint64_t wanted, uint8_t *taken)
{
    spread order = spread_over(count);
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        size_t at = next_of(&order);
        uint64_t item = bytes_of(items, at);
        taken[at] = item <= wanted - bytes;
        bytes += taken[at] ? item : 0;
    }
    return bytes;
}

/* Takes the smallest item of at least `missing` bytes. There is one, as an item that was passed over exceeds what is
 * missing. Returns its bytes. */
static uint64_t take_last(const void *items, size_t count, ms__item_bytes bytes_of, uint64_t missing, uint8_t *taken)
{
    spread order = spread_over(count);
    size_t best = count;
    for (size_t i = 0; i < count; i++) {
        size_t at = next_of(&order);
        bool suffices = !taken[at] && bytes_of(items, at) >= missing;
        best = suffices && (best == count || bytes_of(items, at) < bytes_of(items, best)) ? at : best;
    }
    if (best == count) {
        return 0;
    }
    taken[best] = 1;
    return bytes_of(items, best);
}

/* Gives back items without which the others suffice. Returns their bytes. */
static uint64_t give_back(const void *items, size_t count, ms__item_bytes bytes_of, uint64_t surplus, uint8_t *taken)
{
    uint64_t left = surplus;
    for (size_t i = 0; i < count; i++) {
        if (taken[i] && bytes_of(items, i) <= left) {
            taken[i] = 0;
            left -= bytes_of(items, i);
        }
    }
    return surplus - left;
}

uint64_t ms__take_portion(const void *items, size_t count, ms__item_bytes bytes_of, uint64_t wanted, uint8_t *taken)
{
    uint64_t all = 0;
    for (size_t i = 0; i < count; i++) {
        all += bytes_of(items, i);
    }
    wanted = ms__min_u64(wanted, all);
    uint64_t bytes = take_up_to(items, count, bytes_of, wanted, taken);
    if (bytes < wanted) {
        bytes += take_last(items, count, bytes_of, wanted - bytes, taken);
        bytes -= give_back(items, count, bytes_of, bytes - wanted, taken);
    }
    return bytes;
}
