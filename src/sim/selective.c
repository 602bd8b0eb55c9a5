/*
 * Selective sets: the saved tensors that a layer does not keep, and that single operators recompute. Forms a
 * profile's sets when the simulator is compiled, and replays their recomputation; both follow from the same
 * makers.
 *
 * A dropped tensor is recomputed when backward asks for it, from the tensors that the layer still holds,
 * together with everything in between. Members of the set are then held until their DROP, other results until
 * their last reader ran.
 *
 * Sets are nested: each adds the storages that are next cheapest per byte, and ends where the price of the
 * next byte jumps. So four of them represent all sensible ones.
 */
#include <string.h>

#include "base/units.h"
#include "sim/sim.h"

enum {
    MAKERS_MOST = 4096,    /* of a profile; larger ones get no sets */
    CANDIDATES_MOST = 64,  /* the largest saved storages */
    WORK_MOST = 2000000,   /* makers looked at per profile: bounds the candidates */
    SMALL_PART = 64,       /* candidates have at least 1/64 of the largest one's bytes */
    JUMP_LEAST = 1300,     /* permille by which the price must rise after a set's end */
    NOT_MADE = UINT32_MAX
};

/* ---- a set's cost ------------------------------------------------------------ */

typedef struct set_finder {
    const ms_profile *from;
    ms__sim_profile *profile;
    uint8_t *dropped;  /* [save_count] the set so far */
    uint8_t *marks;    /* [maker_count] */
    uint32_t candidates[CANDIDATES_MOST];
    uint32_t candidate_count;
    uint32_t taken[CANDIDATES_MOST]; /* slots in the order they joined the set */
    uint64_t prices[CANDIDATES_MOST]; /* ns per MiB of each */
    uint32_t taken_count;
} set_finder;

/* Marks the makers that must run for the whole set. Returns the sum of their times, or UINT64_MAX if an
 * input is neither held nor made. */
static uint64_t set_cost_ns(set_finder *f)
{
    const ms__sim_profile *profile = f->profile;
    uint64_t sum = 0;
    memset(f->marks, 0, profile->maker_count);
    for (uint32_t slot = 0; slot < profile->save_count; slot++) {
        uint32_t maker = profile->maker_of[profile->saved[slot]];
        if (f->dropped[slot] && maker == NOT_MADE) {
            return UINT64_MAX;
        }
        if (f->dropped[slot]) {
            f->marks[maker] = 1;
        }
    }
    for (uint32_t i = profile->maker_count; i-- > 0;) {
        const ms__sim_maker *maker = &profile->makers[i];
        if (!f->marks[i]) {
            continue;
        }
        sum = ms__add_sat(sum, maker->ns);
        for (uint32_t k = 0; k < maker->input_count; k++) {
            uint32_t storage = profile->operands[maker->first + k];
            uint32_t slot = f->profile->slot_of[storage];
            if (slot != UINT32_MAX && !f->dropped[slot]) {
                continue;
            }
            if (profile->maker_of[storage] == NOT_MADE || profile->maker_of[storage] >= i) {
                return UINT64_MAX;
            }
            f->marks[profile->maker_of[storage]] = 1;
        }
    }
    return sum;
}

/* ---- candidates --------------------------------------------------------------- */

static uint64_t slot_bytes(const set_finder *f, uint32_t slot)
{
    return f->from->storage_bytes[f->profile->saved[slot]];
}

/* Local, made by an operator, and not small. Storages that cross nodes are held by other nodes anyway. */
static void find_candidates(set_finder *f)
{
    const ms__sim_profile *profile = f->profile;
    uint64_t largest = 1;
    uint32_t most = CANDIDATES_MOST;
    while (most > 4 && (uint64_t)most * most * profile->maker_count > WORK_MOST) {
        most--;
    }
    for (uint32_t slot = 0; slot < profile->save_count; slot++) {
        largest = ms__max_u64(largest, slot_bytes(f, slot));
    }
    for (uint32_t slot = 0; slot < profile->save_count; slot++) {
        uint32_t storage = profile->saved[slot];
        uint64_t bytes = slot_bytes(f, slot);
        bool fit = storage >= profile->external_count && profile->maker_of[storage] != NOT_MADE && bytes > 0 &&
                   ms__mul_sat(bytes, SMALL_PART) >= largest;
        if (!fit) {
            continue;
        }
        /* In order of size; the smallest falls off the end. */
        uint32_t at = f->candidate_count < most ? f->candidate_count++ : most;
        for (; at > 0 && slot_bytes(f, f->candidates[at - 1]) < bytes; at--) {
            if (at < most) {
                f->candidates[at] = f->candidates[at - 1];
            }
        }
        if (at < most) {
            f->candidates[at] = slot;
        }
    }
}

/* The candidate that frees a byte at the lowest price, and that price; UINT32_MAX if there is none. */
static uint32_t set_cheapest(set_finder *f, uint64_t spent_ns, uint64_t *price)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < f->candidate_count; i++) {
        uint32_t slot = f->candidates[i];
        if (f->dropped[slot]) {
            continue;
        }
        f->dropped[slot] = 1;
        uint64_t ns = set_cost_ns(f);
        f->dropped[slot] = 0;
        if (ns == UINT64_MAX) {
            continue;
        }
        uint64_t this_price = ms__mul_div_up(ms__sub_sat(ns, spent_ns), (uint64_t)1 << 20, slot_bytes(f, slot));
        if (best == UINT32_MAX || this_price < *price || (this_price == *price && slot < best)) {
            best = slot;
            *price = this_price;
        }
    }
    return best;
}

static void set_grow(set_finder *f)
{
    uint64_t spent_ns = 0, price = 0;
    for (;;) {
        uint32_t slot = set_cheapest(f, spent_ns, &price);
        if (slot == UINT32_MAX) {
            return;
        }
        f->dropped[slot] = 1;
        f->prices[f->taken_count] = price;
        f->taken[f->taken_count++] = slot;
        spent_ns = set_cost_ns(f);
    }
}

/* ---- knees -------------------------------------------------------------------- */

/* The price of the byte after the first `count` over that of the last one, in permille; 0 if the jump is
 * too small to end a set. */
static uint64_t jump_after(const set_finder *f, uint32_t count)
{
    uint64_t jump = ms__mul_div(f->prices[count] + 1, 1000, f->prices[count - 1] + 1);
    return jump >= JUMP_LEAST ? jump : 0;
}

/* Sizes of the sets, ascending: the largest jumps of the price, and all candidates. */
static uint32_t find_knees(const set_finder *f, uint32_t sizes[MS_SELECTIVE_SETS])
{
    uint64_t jumps[MS_SELECTIVE_SETS] = {0};
    uint32_t count = 0;
    for (uint32_t size = 1; size < f->taken_count; size++) {
        uint64_t jump = jump_after(f, size);
        uint32_t at = count;
        for (; at > 0 && jumps[at - 1] < jump; at--) {
            jumps[at] = jumps[at - 1];
            sizes[at] = sizes[at - 1];
        }
        if (jump > 0 && at < MS_SELECTIVE_SETS - 1) {
            jumps[at] = jump;
            sizes[at] = size;
            count += count < MS_SELECTIVE_SETS - 1;
        }
    }
    if (f->taken_count > 0) {
        sizes[count++] = f->taken_count;
    }
    for (uint32_t i = 1; i < count; i++) {
        for (uint32_t at = i; at > 0 && sizes[at - 1] > sizes[at]; at--) {
            uint32_t swap = sizes[at];
            sizes[at] = sizes[at - 1];
            sizes[at - 1] = swap;
        }
    }
    return count;
}

/* ---- compiling ------------------------------------------------------------------ */

static int copy_makers(const ms_profile *from, ms__sim_profile *to)
{
    to->makers = ms_calloc(from->maker_count, sizeof *to->makers);
    to->maker_of = ms_calloc(from->storage_count, sizeof *to->maker_of);
    if (to->makers == NULL || to->maker_of == NULL) {
        return MS_ENOMEM;
    }
    to->operands = from->operands;
    to->maker_count = from->maker_count;
    if (from->storage_count > 0) {
        memset(to->maker_of, 0xff, from->storage_count * sizeof *to->maker_of);
    }
    for (uint32_t i = 0; i < from->maker_count; i++) {
        const ms_maker *maker = &from->makers[i];
        to->makers[i] = (ms__sim_maker){
            .first = maker->first, .input_count = maker->input_count, .output_count = maker->output_count};
        for (uint32_t k = 0; k < maker->output_count; k++) {
            to->maker_of[from->operands[maker->first + maker->input_count + k]] = i;
        }
    }
    return MS_OK;
}

static void fill_sets(const set_finder *f, ms__sim_profile *profile)
{
    uint32_t sizes[MS_SELECTIVE_SETS + 1];
    profile->set_count = find_knees(f, sizes);
    for (uint32_t set = 0; set < profile->set_count; set++) {
        for (uint32_t i = 0; i < sizes[set]; i++) {
            profile->sets[set * profile->save_count + f->taken[i]] = 1;
        }
    }
}

static void time_makers(const ms__sim *sim, const ms_profile *from, ms__sim_profile *to)
{
    for (uint32_t i = 0; i < to->maker_count; i++) {
        const ms_maker *maker = &from->makers[i];
        ms_event work = {.kind = MS_EVENT_WORK,
                         .flops = maker->flops,
                         .bytes = maker->bytes,
                         .evaluations = maker->evaluations,
                         .precision = maker->precision};
        to->makers[i].ns = ms__add_sat(ms__work_ns(sim, &work), ms__scaled_ns(sim, MS__MAKER_NS));
    }
}

static void invert_slots(uint32_t storage_count, ms__sim_profile *to)
{
    memset(to->slot_of, 0xff, storage_count * sizeof *to->slot_of);
    for (uint32_t slot = 0; slot < to->save_count; slot++) {
        to->slot_of[to->saved[slot]] = slot;
    }
}

int ms__selective_compile(const ms__sim *sim, const ms_profile *from, ms__sim_profile *to)
{
    if (from->maker_count == 0 || from->maker_count > MAKERS_MOST || to->save_count > MAKERS_MOST) {
        return MS_OK;
    }
    int rc = copy_makers(from, to);
    set_finder f = {.from = from, .profile = to};
    to->slot_of = ms_calloc(from->storage_count, sizeof *to->slot_of);
    f.dropped = ms_calloc(to->save_count, 1);
    f.marks = ms_calloc(from->maker_count, 1);
    to->sets = ms_calloc((size_t)to->save_count * MS_SELECTIVE_SETS, 1);
    if (to->slot_of == NULL || f.dropped == NULL || f.marks == NULL || to->sets == NULL) {
        rc = MS_ENOMEM;
    }
    if (rc == MS_OK) {
        time_makers(sim, from, to);
        invert_slots(from->storage_count, to);
        find_candidates(&f);
        set_grow(&f);
        fill_sets(&f, to);
    }
    ms_free(f.dropped);
    ms_free(f.marks);
    return rc;
}

void ms__selective_clear(ms__sim_profile *profile)
{
    ms_free(profile->makers);
    ms_free(profile->maker_of);
    ms_free(profile->slot_of);
    ms_free(profile->sets);
}

const uint8_t *ms__selective_set(const ms__sim_profile *profile, ms_technique technique)
{
    uint32_t set = ms_technique_of(technique)->set;
    return set > 0 && set <= profile->set_count ? &profile->sets[(size_t)(set - 1) * profile->save_count] : NULL;
}

/* ---- replaying -------------------------------------------------------------------- */

/* Marks the makers that must run for one storage, and the last reader of each result. */
static void mark_needed(ms__sim *sim, const ms__sim_node *node, uint32_t wanted)
{
    const ms__sim_profile *profile = node->profile;
    uint32_t last = profile->maker_of[wanted];
    memset(sim->maker_marks, 0, last + 1);
    sim->maker_marks[last] = 1;
    for (uint32_t i = last + 1; i-- > 0;) {
        const ms__sim_maker *maker = &profile->makers[i];
        for (uint32_t k = 0; sim->maker_marks[i] && k < maker->input_count; k++) {
            uint32_t storage = profile->operands[maker->first + k];
            if (!ms__sim_has(sim, node, storage)) {
                sim->maker_marks[profile->maker_of[storage]] = 1;
                sim->last_reader[storage] = sim->last_reader[storage] > i ? sim->last_reader[storage] : i + 1;
            }
        }
    }
}

/* Temporaries end with their last reader; members of the set are held until their DROP. */
static void settle_operands(ms__sim *sim, const ms__sim_node *node, uint32_t index)
{
    const ms__sim_profile *profile = node->profile;
    const ms__sim_maker *maker = &profile->makers[index];
    for (uint32_t k = 0; k < maker->input_count + maker->output_count; k++) {
        uint32_t storage = profile->operands[maker->first + k];
        if (k >= maker->input_count) {
            ms__sim_hold_recomputed(sim, node, storage);
        }
        if (sim->last_reader[storage] <= index + 1) {
            ms__sim_end_recomputed(sim, node, storage);
            sim->last_reader[storage] = 0;
        }
    }
}

void ms__selective_recompute(ms__sim *sim, const ms__sim_node *node, uint32_t wanted)
{
    const ms__sim_profile *profile = node->profile;
    uint32_t last = profile->maker_of[wanted];
    mark_needed(sim, node, wanted);
    for (uint32_t i = 0; i <= last; i++) {
        const ms__sim_maker *maker = &profile->makers[i];
        if (!sim->maker_marks[i]) {
            continue;
        }
        for (uint32_t k = 0; k < maker->input_count; k++) {
            ms__sim_fetch(sim, node, profile->operands[maker->first + k]);
        }
        for (uint32_t k = 0; k < maker->output_count; k++) {
            ms__sim_begin_recomputed(sim, node, profile->operands[maker->first + maker->input_count + k]);
        }
        sim->recompute_ns = ms__add_sat(sim->recompute_ns, maker->ns);
        ms__sim_spend(sim, maker->ns);
        settle_operands(sim, node, i);
    }
}
