/*
 * Candidates with selective sets, in the current step. Only the techniques that stand out when used
 * everywhere are combined. Called by solver.c.
 */
#include "base/units.h"
#include "search/search.h"

enum { STANDOUTS_MOST = 6 };

/* A technique with its result when used everywhere. */
typedef struct standout {
    ms_technique technique;
    uint64_t step_ns;
    uint64_t peak_bytes;
} standout;

static bool is_dominated(const standout *one, const standout *items, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const standout *other = &items[i];
        bool better = other->step_ns < one->step_ns || other->peak_bytes < one->peak_bytes;
        bool earlier = other->technique < one->technique;
        if (other != one && other->step_ns <= one->step_ns && other->peak_bytes <= one->peak_bytes &&
            (better || earlier)) {
            return true;
        }
    }
    return false;
}

/* Uses the technique everywhere, with the first window; false if it is admitted nowhere. */
static bool try_everywhere(ms__search *search, int technique, standout *found)
{
    if (((search->layer_techniques | search->selective_techniques) & 1u << technique) == 0) {
        return false;
    }
    for (uint32_t i = 0; i < search->node_count; i++) {
        search->scratch[i] = ms__search_pick(search, i, (ms_technique)technique, MS_TECHNIQUE_KEEP);
    }
    ms_choices choices = ms__search_choices(search, search->scratch, 0, 0);
    ms__outcome outcome;
    ms__sim_run(search->sim, &choices, &outcome, NULL);
    *found = (standout){(ms_technique)technique, outcome.replay.step_ns, outcome.replay.peak_bytes};
    return true;
}

/* From the lowest peak up; evenly spread if there are too many. */
static size_t find_standouts(ms__search *search, standout *out)
{
    standout all[MS_TECHNIQUE_COUNT];
    size_t count = 0, kept = 0;
    for (int technique = 1; technique < MS_TECHNIQUE_COUNT; technique++) {
        count += try_everywhere(search, technique, &all[count]);
    }
    for (size_t i = 0; i < count; i++) {
        if (!is_dominated(&all[i], all, count)) {
            standout moving = all[i];
            size_t at = kept++;
            for (; at > 0 && out[at - 1].peak_bytes > moving.peak_bytes; at--) {
                out[at] = out[at - 1];
            }
            out[at] = moving;
        }
    }
    if (kept <= STANDOUTS_MOST) {
        return kept;
    }
    for (size_t i = 0; i < STANDOUTS_MOST; i++) {
        out[i] = out[i * (kept - 1) / (STANDOUTS_MOST - 1)];
    }
    return STANDOUTS_MOST;
}

static bool is_selective(const standout *one)
{
    return ms_technique_of(one->technique)->set > 0;
}

void ms__families_selective(ms__search *search)
{
    standout standouts[MS_TECHNIQUE_COUNT];
    for (int technique = 0; technique < MS_TECHNIQUE_COUNT; technique++) {
        if (search->selective_techniques & 1u << technique) {
            ms__families_everywhere(search, (ms_technique)technique);
        }
    }
    size_t count = find_standouts(search, standouts);
    for (size_t i = 0; i < count; i++) {
        if (is_selective(&standouts[i])) {
            ms__families_split_one(search, standouts[i].technique, MS_TECHNIQUE_KEEP);
        }
    }
    search->offered = ~0u;
    ms__families_greedy(search);
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < count; k++) {
            if (i != k && (is_selective(&standouts[i]) || is_selective(&standouts[k]))) {
                ms__families_mix_two(search, standouts[i].technique, standouts[k].technique);
            }
        }
    }
}
