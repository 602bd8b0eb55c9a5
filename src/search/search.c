/*
 * The search's set of candidates: replays each assignment once, keeps its result, and finds the candidates
 * that none dominates. solver.c owns it; families.c fills it.
 */
#include "search/search.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/units.h"

/* A replay costs about 10 ns an event: these bounds keep a 12-layer model under 0.3 s
 * and a 100-layer one under 1 s. Counted, not timed: the same set on every machine. */
enum { REPLAYS_LEAST = 300, REPLAYS_MOST = 3000 };
static const uint64_t events_most = 40000000;

/* Two runs of one script begin with baselines up to 0.2 MB apart, and up to 1.2 MB for a mixture of
 * experts. Includes a margin. */
static const uint64_t runs_differ_bytes = 4000000;

/* ---- set-up ------------------------------------------------------------------- */

/* With a smaller window, a store's wait for the one before costs more than its bytes are worth. */
enum { FORCED_WRITE_BYTES_LEAST = 1 << 20 };

/* The largest single storage that a layer saves: under a smaller window nothing could be fetched ahead. It
 * is the first window if the smallest peak is wanted. */
static uint64_t largest_saved(const ms__search *search, const ms_graph *graph)
{
    uint64_t largest = 0;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const ms__sim_node *node = &search->sim->nodes[i];
        for (uint32_t s = 0; graph->nodes[i].kind == MS_NODE_LAYER && s < node->profile->save_count; s++) {
            uint32_t instance = ms__sim_instance_of(node, node->profile->saved[s]);
            largest = ms__max_u64(largest, search->sim->instance_bytes[instance]);
        }
    }
    return largest;
}

static void choose_windows(ms__search *search, const ms_graph *graph, const ms_config *config)
{
    search->waits = !config->async_offload && !search->sim->on_host;
    static const ms__window set[MS__WINDOW_COUNT] = {
        {(uint64_t)64 << 20, (uint64_t)64 << 20},
        {(uint64_t)256 << 20, (uint64_t)128 << 20},
        {(uint64_t)768 << 20, (uint64_t)384 << 20},
    };
    uint64_t single = largest_saved(search, graph), layer = 0;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        if (graph->nodes[i].kind == MS_NODE_LAYER) {
            layer = ms__max_u64(layer, search->admissions[i].offload_bytes);
        }
    }
    for (int i = 0; i < MS__WINDOW_COUNT; i++) {
        uint64_t read = config->prefetch_depth > 0 ? ms__mul_sat(layer, config->prefetch_depth) : set[i].read_bytes;
        search->windows[i].write_bytes = ms__max_u64(set[i].write_bytes, single);
        search->windows[i].read_bytes = ms__max_u64(read, single);
    }
    if (search->forced) {
        search->windows[0] = (ms__window){ms__max_u64(single, FORCED_WRITE_BYTES_LEAST), single};
    }
}

/* Removes the sets that a node's profile lacks: the rules do not look into profiles. */
static int copy_admissions(ms__search *search, const ms_admission *admissions)
{
    search->admissions = ms_calloc(search->node_count, sizeof *search->admissions);
    for (uint32_t i = 0; search->admissions != NULL && i < search->node_count; i++) {
        ms_admission *own = &search->admissions[i];
        *own = admissions[i];
        for (int technique = 0; technique < MS_TECHNIQUE_COUNT; technique++) {
            bool lacks = (MS__SELECTIVE & 1u << technique) != 0 &&
                         ms__selective_set(search->sim->nodes[i].profile, (ms_technique)technique) == NULL;
            if (lacks && (own->under_pressure & 1u << technique) != 0) {
                own->techniques &= ~(1u << technique);
                own->under_pressure &= ~(1u << technique);
                own->rule[technique] = MS_RULE_NO_MAKERS;
            }
        }
    }
    return search->admissions != NULL ? MS_OK : MS_ENOMEM;
}

static void find_movable(ms__search *search, const ms_graph *graph)
{
    uint32_t root_techniques = 0;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        uint32_t mask = search->admissions[i].under_pressure & ~(1u << MS_TECHNIQUE_KEEP);
        if (graph->nodes[i].kind == MS_NODE_LAYER && mask != 0) {
            search->layers[search->layer_count++] = i;
            search->layer_techniques |= mask & MS__WHOLE;
            search->selective_techniques |= mask & MS__SELECTIVE;
            search->segment_techniques |= mask & MS__CHAINED;
        } else if (mask != 0) { /* the rules only let root work move */
            search->roots[search->root_count++] = i;
            root_techniques |= mask;
        }
    }
    bool host = (root_techniques & 1u << MS_TECHNIQUE_OFFLOAD_HOST) != 0;
    search->root_technique = host ? MS_TECHNIQUE_OFFLOAD_HOST : MS_TECHNIQUE_OFFLOAD_DISK;
}

static int add_step(ms__search *search, uint32_t options, uint64_t moved_bytes, ms_error *err)
{
    ms__search_step *step = &search->steps[search->step_count];
    *step = (ms__search_step){.options = options, .moved_bytes = moved_bytes};
    int rc = ms__step_sim_new(search->graph, search->hardware, options, moved_bytes, &step->sim, err);
    search->step_count += rc == MS_OK;
    return rc;
}

/* Every combination of options that agree, fewest bits first. */
static int open_steps(uint32_t options, ms__search *search, ms_error *err)
{
    int rc = MS_OK;
    for (uint32_t mask = 0; rc == MS_OK && mask <= options && search->step_count < MS__STEPS_COMBINED_MOST; mask++) {
        if ((mask & ~options) == 0 && ms__step_options_agree(mask)) {
            rc = add_step(search, mask, 0, err);
        }
    }
    return rc;
}

void ms__search_use(ms__search *search, uint32_t step)
{
    search->step = step;
    search->sim = search->steps[step].sim;
}

static uint32_t find_step(const ms__search *search, uint32_t options, uint64_t moved_bytes)
{
    uint32_t step = 0;
    while (step < search->step_count &&
           (search->steps[step].options != options || search->steps[step].moved_bytes != moved_bytes)) {
        step++;
    }
    return step;
}

uint32_t ms__search_find_step(const ms__search *search, uint32_t options)
{
    return find_step(search, options, 0);
}

uint32_t ms__search_step_for(ms__search *search, uint32_t options, uint64_t moved_bytes)
{
    uint32_t whole = find_step(search, options, 0);
    if (whole == search->step_count || moved_bytes == 0 || (options & MS__STATE_MOVES) == 0) {
        return whole;
    }
    uint32_t found = find_step(search, options, moved_bytes);
    if (found == search->step_count && found < MS__STEPS_MOST) {
        search->out_of_memory |= add_step(search, options, moved_bytes, NULL) != MS_OK;
    }
    return found;
}

static bool any_bits(const ms__search *search)
{
    bool any = false;
    for (uint32_t i = 0; i < search->step_count; i++) {
        any |= search->steps[i].sim->has_bits;
    }
    return any;
}

int ms__search_open(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                    const ms_admission *admissions, bool forced, uint32_t options, ms__search *search, ms_error *err)
{
    memset(search, 0, sizeof *search);
    search->graph = graph;
    search->hardware = hardware;
    int rc = open_steps(options, search, err);
    if (rc != MS_OK) {
        ms__search_close(search);
        return rc;
    }
    ms__search_use(search, 0);
    search->node_count = graph->node_count;
    search->forced = forced;
    search->offered = MS__WHOLE;
    search->runs_differ_bytes =
        ms_hardware_host_is_device(hardware) && hardware->process.baseline_bytes > 0 ? runs_differ_bytes : 0;
    search->offload_min_bytes = forced ? 1 : MS_OFFLOAD_MIN_BYTES;
    search->tier_cap_bytes[MS__HOST_TIER] = ms_rules_host_cap(hardware, config);
    search->tier_cap_bytes[MS__DISK_TIER] = ms_rules_disk_cap(hardware, config);
    search->pinned_bytes = ms_rules_pinned(hardware, config);
    search->layers = ms_calloc(graph->node_count, sizeof *search->layers);
    search->roots = ms_calloc(graph->node_count, sizeof *search->roots);
    search->row_bytes = graph->node_count * (any_bits(search) ? 2 : 1);
    search->scratch = ms_calloc(search->row_bytes, sizeof *search->scratch);
    search->table_size = 1024;
    search->table = ms_calloc(search->table_size, sizeof *search->table);
    if (search->layers == NULL || search->roots == NULL || search->scratch == NULL || search->table == NULL ||
        copy_admissions(search, admissions) != MS_OK) {
        ms__search_close(search);
        return ms_fail(err, MS_ENOMEM, "solver: out of memory for %u nodes", graph->node_count);
    }
    choose_windows(search, graph, config);
    find_movable(search, graph);
    uint64_t affordable = events_most / ms__max_u64(search->sim->event_count, 1);
    search->permille = config->search_permille == 0 ? 1000 : config->search_permille;
    search->replays_left = ms__search_share(search, ms__min_u64(ms__max_u64(affordable, REPLAYS_LEAST), REPLAYS_MOST));
    search->replays_most = search->replays_left;
    return MS_OK;
}

uint64_t ms__search_share(const ms__search *search, uint64_t replays)
{
    return ms__mul_div_up(replays, search->permille, 1000);
}

void ms__search_close(ms__search *search)
{
    for (uint32_t i = 0; i < search->step_count; i++) {
        ms__sim_free(search->steps[i].sim);
    }
    ms_free(search->admissions);
    ms_free(search->layers);
    ms_free(search->roots);
    ms_free(search->scratch);
    ms_free(search->table);
    ms_free(search->items);
    ms_free(search->rows);
    memset(search, 0, sizeof *search);
}

void ms__search_keep_all(ms__search *search)
{
    memset(search->scratch, MS_TECHNIQUE_KEEP, search->row_bytes);
}

void ms__search_load(ms__search *search, size_t index)
{
    ms__search_use(search, search->items[index].step);
    memcpy(search->scratch, ms__candidate_row(search, index), search->row_bytes);
}

uint32_t ms__search_packs(const ms__search *search, uint32_t node)
{
    const ms__sim_profile *profile = search->sim->nodes[node].profile;
    uint32_t last = 0;
    for (uint32_t s = 0; search->admissions[node].packs && s < profile->save_count; s++) {
        const ms__sim_bits *bits = &profile->bits[s];
        last = bits->rank > last && ms__search_may_pack(search, bits) ? bits->rank : last;
    }
    return last;
}

/* ---- candidates ----------------------------------------------------------------- */

ms_choices ms__search_choices(const ms__search *search, const uint8_t *row, uint32_t window, uint64_t ceiling_bytes)
{
    return (ms_choices){.technique = row,
                        .packed = ms__row_packed(search, row),
                        .step_options = search->steps[search->step].options,
                        .offload_min_bytes = search->offload_min_bytes,
                        .write_window_bytes = search->windows[window].write_bytes,
                        .read_window_bytes = search->windows[window].read_bytes,
                        .host_leads = !search->forced, /* nothing has to fit */
                        .waits = search->waits,
                        .pinned_bytes = search->pinned_bytes,
                        .state_moved_bytes = search->steps[search->step].moved_bytes,
                        .ceiling_bytes = ceiling_bytes};
}

uint8_t ms__search_pick(const ms__search *search, uint32_t node, ms_technique wanted, ms_technique second)
{
    uint32_t mask = search->admissions[node].under_pressure;
    if (mask & 1u << wanted) {
        return (uint8_t)wanted;
    }
    return mask & 1u << second ? (uint8_t)second : (uint8_t)MS_TECHNIQUE_KEEP;
}

bool ms__search_moves(const ms__search *search, const uint8_t *techniques)
{
    for (uint32_t i = 0; i < search->node_count; i++) {
        if (ms_technique_moves((ms_technique)techniques[i])) {
            return true;
        }
    }
    return false;
}

static bool is_light(const ms__search *search, const uint8_t *techniques)
{
    for (uint32_t i = 0; i < search->node_count; i++) {
        if ((search->admissions[i].techniques & 1u << techniques[i]) == 0) {
            return false;
        }
    }
    return true;
}

/* FNV-1a over row, window and step. */
static uint64_t assignment_hash(const uint8_t *row, uint32_t count, uint32_t window, uint32_t step)
{
    uint64_t hash = 14695981039346656037u ^ window ^ (uint64_t)step << 32;
    for (uint32_t i = 0; i < count; i++) {
        hash = (hash ^ row[i]) * 1099511628211u;
    }
    return hash ^ hash >> 29;
}

/* The assignment's place in the table, or the empty place for it. */
static size_t find_place(const ms__search *search, const uint8_t *row, uint32_t window, uint32_t step)
{
    size_t mask = search->table_size - 1;
    size_t place = assignment_hash(row, search->row_bytes, window, step) & mask;
    while (search->table[place] != 0) {
        size_t index = search->table[place] - 1;
        if (search->items[index].window == window && search->items[index].step == step &&
            memcmp(ms__candidate_row(search, index), row, search->row_bytes) == 0) {
            break;
        }
        place = (place + 1) & mask;
    }
    return place;
}

static int grow_table(ms__search *search)
{
    size_t size = search->table_size * 2;
    uint32_t *table = ms_calloc(size, sizeof *table);
    if (table == NULL) {
        return MS_ENOMEM;
    }
    ms_free(search->table);
    search->table = table;
    search->table_size = size;
    for (size_t i = 0; i < search->count; i++) {
        size_t place = find_place(search, ms__candidate_row(search, i), search->items[i].window, search->items[i].step);
        search->table[place] = (uint32_t)i + 1;
    }
    return MS_OK;
}

static int reserve_one(ms__search *search)
{
    if (search->count < search->capacity) {
        return MS_OK;
    }
    size_t wanted = search->capacity == 0 ? 256 : search->capacity * 2;
    size_t capacity = search->capacity;
    int rc = ms__array_reserve(&search->items, &capacity, wanted, sizeof *search->items);
    if (rc == MS_OK) {
        size_t rows = search->capacity;
        rc = ms__array_reserve(&search->rows, &rows, wanted, search->row_bytes);
    }
    if (rc == MS_OK) {
        search->capacity = wanted;
    }
    if (rc == MS_OK && search->table_size < 2 * wanted) {
        rc = grow_table(search);
    }
    return rc;
}

static void fill_candidate(ms__candidate *candidate, const ms__outcome *outcome)
{
    candidate->step_ns = outcome->replay.step_ns;
    candidate->work_ns = outcome->replay.step_ns - outcome->replay.fault_ns;
    candidate->fixed_bytes = outcome->fixed_bytes;
    candidate->live_peak_bytes = outcome->live_peak_bytes;
    candidate->activation_peak_bytes = outcome->activation_peak_bytes;
    candidate->boundary_bytes = outcome->boundary_bytes;
    candidate->held_most_bytes = outcome->held_most_bytes;
}

static bool tiers_hold(const ms__search *search, const ms_replay *replay)
{
    return replay->tier_peak_bytes[MS__HOST_TIER] <= search->tier_cap_bytes[MS__HOST_TIER] &&
           replay->tier_peak_bytes[MS__DISK_TIER] <= search->tier_cap_bytes[MS__DISK_TIER];
}

void ms__search_add(ms__search *search, uint32_t window, bool must)
{
    window = ms__search_moves(search, search->scratch) ? window : 0;
    if (search->out_of_memory || (search->replays_left == 0 && !must)) {
        return;
    }
    if (reserve_one(search) != MS_OK) {
        search->out_of_memory = true;
        return;
    }
    size_t place = find_place(search, search->scratch, window, search->step);
    if (search->table[place] != 0) {
        return;
    }
    ms_choices choices = ms__search_choices(search, search->scratch, window, 0);
    ms__outcome outcome;
    ms__sim_run(search->sim, &choices, &outcome, NULL);
    search->replays_left -= search->replays_left > 0;
    if (!tiers_hold(search, &outcome.replay)) {
        return;
    }
    ms__candidate *candidate = &search->items[search->count];
    *candidate = (ms__candidate){.window = window, .step = search->step, .light = is_light(search, search->scratch)};
    fill_candidate(candidate, &outcome);
    memcpy(&search->rows[search->count * search->row_bytes], search->scratch, search->row_bytes);
    search->table[place] = (uint32_t)++search->count;
}

/* ---- the front ------------------------------------------------------------------- */

static uint64_t candidate_time(const ms__candidate *candidate, ms__front_kind kind)
{
    return kind == MS__FRONT_CACHED ? candidate->work_ns : candidate->step_ns;
}

static int compare_candidates(const ms__search *search, size_t left, size_t right, ms__front_kind kind)
{
    const ms__candidate *a = &search->items[left], *b = &search->items[right];
    uint64_t peak_a = ms__candidate_peak(a), peak_b = ms__candidate_peak(b);
    uint64_t time_a = candidate_time(a, kind), time_b = candidate_time(b, kind);
    if (time_a != time_b) {
        return time_a < time_b ? -1 : 1;
    }
    if (peak_a != peak_b) {
        return peak_a < peak_b ? -1 : 1;
    }
    /* Equal in both: the one that holds less with an unbounded cache. */
    if (a->held_most_bytes != b->held_most_bytes) {
        return a->held_most_bytes < b->held_most_bytes ? -1 : 1;
    }
    int order = memcmp(ms__candidate_row(search, left), ms__candidate_row(search, right), search->row_bytes);
    order = order != 0 ? order : (a->step > b->step) - (a->step < b->step);
    return order != 0 ? order : (a->window > b->window) - (a->window < b->window);
}

int ms__candidate_compare(const ms__search *search, size_t left, size_t right)
{
    return compare_candidates(search, left, right, MS__FRONT_UNCACHED);
}

/* Sorts indices by compare_candidates(). A heap sort, as qsort() takes no context. */
static void sift_down(const ms__search *search, ms__front_kind kind, size_t *indices, size_t at, size_t count)
{
    for (size_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && compare_candidates(search, indices[child], indices[child + 1], kind) < 0) {
            child++;
        }
        if (compare_candidates(search, indices[at], indices[child], kind) >= 0) {
            return;
        }
        size_t swap = indices[at];
        indices[at] = indices[child];
        indices[child] = swap;
        at = child;
    }
}

static void sort_indices(const ms__search *search, ms__front_kind kind, size_t *indices, size_t count)
{
    for (size_t i = count / 2; i-- > 0;) {
        sift_down(search, kind, indices, i, count);
    }
    for (size_t end = count; end-- > 1;) {
        size_t swap = indices[0];
        indices[0] = indices[end];
        indices[end] = swap;
        sift_down(search, kind, indices, 0, end);
    }
}

/* Leaves `most` of `count`, with the first and the last. */
static size_t thin_indices(size_t *indices, size_t count, size_t most)
{
    if (count <= most || most < 2) {
        return count < most ? count : most;
    }
    for (size_t i = 0; i < most; i++) {
        indices[i] = indices[i * (count - 1) / (most - 1)];
    }
    return most;
}

ms_exactness ms__candidate_exactness(const ms__search *search, size_t candidate)
{
    return ms__step_options_exactness(search->steps[search->items[candidate].step].options);
}

size_t ms__search_front(ms__search *search, ms__front_kind kind, bool light, size_t among, size_t *indices, size_t most)
{
    size_t *all = ms_calloc(among, sizeof *all);
    if (all == NULL) {
        search->out_of_memory = true;
        return 0;
    }
    size_t count = 0, kept = 0;
    for (size_t i = 0; i < among; i++) {
        if (!light || search->items[i].light) {
            all[count++] = i;
        }
    }
    sort_indices(search, kind, all, count);
    uint64_t lowest[] = {UINT64_MAX, UINT64_MAX, UINT64_MAX}; /* lowest peak up to each ms_exactness */
    for (size_t i = 0; i < count; i++) {
        uint64_t peak = ms__candidate_peak(&search->items[all[i]]);
        ms_exactness class = ms__candidate_exactness(search, all[i]);
        if (peak < lowest[class]) {
            all[kept++] = all[i];
        }
        for (int c = (int)class; c <= MS_LOSSY; c++) {
            lowest[c] = ms__min_u64(lowest[c], peak);
        }
    }
    kept = thin_indices(all, kept, most);
    memcpy(indices, all, kept * sizeof *indices);
    ms_free(all);
    return kept;
}
