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

/* The bytes of state that move if at least `sixteenths` do. `marks` has an entry for each storage. */
static uint64_t moved_bytes_of(const ms_graph *graph, uint32_t sixteenths, uint8_t *marks)
{
    uint64_t state = ms__streamed_state_bytes(&graph->loop);
    uint64_t all = ms__take_portion(graph->storages, graph->storage_count, gradient_bytes, UINT64_MAX, marks);
    uint64_t wanted = ms__mul_div_up(all, sixteenths, STATE_SIXTEENTHS);
    uint64_t taken = ms__take_portion(graph->storages, graph->storage_count, gradient_bytes, wanted, marks);
    return all > 0 ? ms__mul_div(state, taken, all) : ms__mul_div(state, sixteenths, STATE_SIXTEENTHS);
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

static void add_part(ms__search *search, size_t base, uint64_t moved_bytes)
{
    uint32_t options = moving_options(search, base);
    bool has_room = search->step_count + MS_STEP_OPTION_COUNT < MS__STEPS_MOST; /* entries.c makes the others */
    if (options != 0 && has_room) {
        uint32_t step = ms__search_step_for(search, options, moved_bytes);
        if (step < search->step_count) {
            ms__search_load(search, base);
            ms__search_use(search, step);
            ms__search_add(search, search->items[base].window, false);
        }
    }
}

void ms__families_state(ms__search *search)
{
    const ms_graph *graph = search->graph;
    size_t bases[2 * BASES_MOST];
    uint8_t *marks = ms_calloc((size_t)graph->storage_count + 1, 1);
    if (marks == NULL) {
        search->out_of_memory = true;
        return;
    }
    size_t count = ms__search_front(search, MS__FRONT_UNCACHED, false, search->count, bases, BASES_MOST);
    count += ms__search_front(search, MS__FRONT_CACHED, false, search->count, bases + count, BASES_MOST);
    for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
        uint64_t moved_bytes = moved_bytes_of(graph, parts[p], marks);
        bool is_part = moved_bytes > 0 && moved_bytes < ms__streamed_state_bytes(&graph->loop);
        for (size_t i = 0; is_part && i < count && !search->out_of_memory; i++) {
            add_part(search, bases[i], moved_bytes);
        }
    }
    ms_free(marks);
}
