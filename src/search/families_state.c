/*
 * Candidates that move a part of the optimizer's state. A step option moves all state that may move. Most budgets need less,
 * and less takes less time. The best candidates so far are replayed with parts of the state moved: first with a half, then
 * with ever finer parts, until the replays are used up. A part has the states of whole parameters, as the optimizer moves
 * them; the gradients tell their sizes. Called after all other families.
 */
#include "base/portion.h"
#include "base/units.h"
#include "search/search.h"

enum { STATE_SIXTEENTHS = 16, BASES_MOST = 24 };

/* The state of a parameter with a smaller gradient stays: it has fewer than MS__STREAM_LEAST_ELEMENTS, of 16 bits. */
static const uint64_t gradient_bytes_least = 2 * MS__STREAM_LEAST_ELEMENTS;

/* Sixteenths that move, the coarse ones first. */
static const uint32_t parts[] = {8, 4, 12, 2, 6, 10, 14, 1, 3, 5, 7, 9, 11, 13, 15};

static uint64_t gradient_bytes(const void *storages, size_t index)
{
    const ms_storage *storage = &((const ms_storage *)storages)[index];
    bool counts = storage->role == MS_STORAGE_GRADIENT && storage->bytes >= gradient_bytes_least;
    return counts ? storage->bytes : 0;
}

/* The gradients that tell the sizes, with the marks that a choice among them needs. */
typedef struct gradients {
    const ms_graph *graph;
    uint8_t *marks; /* [storage_count] */
    uint64_t all_bytes;
} gradients;

static uint64_t take_gradients(const gradients *from, uint64_t wanted_bytes)
{
    const ms_graph *graph = from->graph;
    return ms__take_portion(graph->storages, graph->storage_count, gradient_bytes, wanted_bytes, from->marks);
}

/* The bytes of state that move if at least `sixteenths` do. */
static uint64_t moved_bytes_of(const gradients *from, uint32_t sixteenths)
{
    uint64_t state = ms__streamed_state_bytes(&from->graph->loop), all = from->all_bytes;
    if (all == 0) {
        return ms__mul_div(state, sixteenths, STATE_SIXTEENTHS);
    }
    return ms__mul_div(state, take_gradients(from, ms__mul_div_up(all, sixteenths, STATE_SIXTEENTHS)), all);
}

/* The options of a candidate, with state moved. 0 if nothing admitted moves it. */
static uint32_t moving_options(const ms__search *search, size_t candidate)
{
    static const ms_step_option movers[] = {MS_STEP_STATE_ON_DISK, MS_STEP_STATE_ON_HOST};
    uint32_t options = search->steps[search->items[candidate].step].options;
    for (size_t i = 0; (options & MS__STATE_MOVES) == 0 && i < sizeof movers / sizeof movers[0]; i++) {
        uint32_t with = ms__step_options_toggle(options, movers[i]);
        options = ms__search_find_step(search, with) < search->step_count ? with : options;
    }
    return (options & MS__STATE_MOVES) != 0 ? options : 0;
}

static bool any_moves_state(const ms__search *search)
{
    bool any = false;
    for (uint32_t i = 0; i < search->step_count; i++) {
        any |= (search->steps[i].options & MS__STATE_MOVES) != 0;
    }
    return any;
}

static void add_part(ms__search *search, size_t base, uint64_t moved_bytes)
{
    uint32_t options = moving_options(search, base);
    if (options == 0 || search->step_count + MS_STEP_OPTION_COUNT >= MS__STEPS_MOST) {
        return; /* entries.c needs steps too */
    }
    uint32_t step = ms__search_step_for(search, options, moved_bytes);
    if (step < search->step_count) {
        ms__search_load(search, base);
        ms__search_use(search, step);
        ms__search_add(search, search->items[base].window, false);
    }
}

static void add_parts(ms__search *search, const gradients *from)
{
    size_t bases[2 * BASES_MOST];
    size_t count = ms__search_front(search, MS__FRONT_UNCACHED, false, search->count, bases, BASES_MOST);
    count += ms__search_front(search, MS__FRONT_CACHED, false, search->count, bases + count, BASES_MOST);
    for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
        uint64_t moved_bytes = moved_bytes_of(from, parts[p]);
        bool is_part = moved_bytes > 0 && moved_bytes < ms__streamed_state_bytes(&from->graph->loop);
        for (size_t i = 0; is_part && i < count && !search->out_of_memory; i++) {
            add_part(search, bases[i], moved_bytes);
        }
    }
}

void ms__families_state(ms__search *search)
{
    if (!any_moves_state(search)) {
        return;
    }
    gradients from = {.graph = search->graph, .marks = ms_calloc((size_t)search->graph->storage_count + 1, 1)};
    if (from.marks == NULL) {
        search->out_of_memory = true;
        return;
    }
    from.all_bytes = take_gradients(&from, UINT64_MAX);
    add_parts(search, &from);
    ms_free(from.marks);
}
