/*
 * The place and parts of a plan's peak: the plan is replayed once more, and at its peak every storage on the
 * device is classified by kind and node. Called once per plan.
 */
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "plan/explain_internal.h"
#include "sim/process.h"

static const struct {
    const char *name, *text;
} kinds[] = {
#define PEAK_KIND_ROW(id, name, text) [MS_PEAK_##id] = {name, text},
    MS_PEAK_KIND_TABLE(PEAK_KIND_ROW)
#undef PEAK_KIND_ROW
};

const char *ms_peak_kind_name(ms_peak_kind kind)
{
    return (unsigned)kind < MS_PEAK_KIND_COUNT ? kinds[kind].name : "unknown";
}

const char *ms_peak_kind_text(ms_peak_kind kind)
{
    return (unsigned)kind < MS_PEAK_KIND_COUNT ? kinds[kind].text : "unknown";
}

const char *ms_step_phase_name(ms_step_phase phase)
{
    static const char *const names[] = {"forward", "backward", "optimizer"};
    return (unsigned)phase < MS_PHASE_COUNT ? names[phase] : "unknown";
}

/* The kind and node of each instance on the device. */
typedef struct peak_census {
    uint8_t *kind;       /* [instance_count], MS_PEAK_KIND_COUNT if unclaimed */
    uint32_t *node;      /* [instance_count] */
    const uint8_t *logits; /* [instance_count] 1: of a cross entropy */
    ms_peak_part *parts; /* room for every kind with every node and with none */
    uint32_t node_count;
    uint32_t event;
    uint64_t small_bytes; /* at the peak, of tensors that libc holds */
    bool again;
} peak_census;

/* ---- logits --------------------------------------------------------------------------- */

/* Between LOSS and LOSS_END, a cross entropy allocates other buffers of its logits' size. */
static void mark_program(const ms_profile *profile, const ms__sim_node *node, const ms_event *events, uint32_t count,
                         uint8_t *logits)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < count; i++) {
        const ms_event *event = &events[i];
        if (event->kind == MS_EVENT_LOSS) {
            least = ms__max_u64(profile->storage_bytes[event->storage] / 2, 1);
        }
        bool made = event->kind == MS_EVENT_ALLOC && profile->storage_bytes[event->storage] >= least;
        if (event->kind == MS_EVENT_LOSS || event->kind == MS_EVENT_LOSS_END || made) {
            logits[ms__sim_instance_of(node, event->storage)] = 1;
        }
        least = event->kind == MS_EVENT_LOSS_END ? UINT64_MAX : least;
    }
}

/* Marks come from the traced graph, as step options remove them. They are in the root's work. */
static void mark_logits(const ms__sim *traced, const ms__sim *sim, uint8_t *logits)
{
    const ms_graph *graph = traced->graph;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const ms_profile *profile = &graph->profiles[graph->nodes[i].profile];
        if (sim->nodes[i].is_root) {
            mark_program(profile, &sim->nodes[i], profile->forward, profile->forward_count, logits);
            mark_program(profile, &sim->nodes[i], profile->backward, profile->backward_count, logits);
        }
    }
}

/* ---- the census ------------------------------------------------------------------------ */

static void peak_claim(peak_census *c, uint32_t instance, ms_peak_kind kind, uint32_t node)
{
    if (c->kind[instance] == MS_PEAK_KIND_COUNT) {
        c->kind[instance] = (uint8_t)kind;
        c->node[instance] = node;
    }
}

/* Claims the storages in slots of one state. */
static void claim_slots(const ms__sim *sim, peak_census *c, ms__slot_state state, ms_peak_kind saved,
                        ms_peak_kind argument)
{
    for (uint32_t i = 0; i < sim->node_count; i++) {
        const ms__sim_node *node = &sim->nodes[i];
        const ms__sim_profile *profile = node->profile;
        for (uint32_t s = 0; s < profile->save_count + profile->input_count; s++) {
            bool is_save = s < profile->save_count;
            uint32_t storage = is_save ? profile->saved[s] : profile->inputs[s - profile->save_count];
            bool made = state == MS__SLOT_REBUILT && profile->made[storage];
            uint32_t instance = made ? node->first_replay + storage : ms__sim_instance_of(node, storage);
            if (sim->slots[node->first_slot + s].state == state) {
                peak_claim(c, instance, is_save ? saved : argument, i);
            }
        }
    }
}

/* Storages on the lower tier: fetched ones, and those in memory only because a write reads them. */
static void claim_away(const ms__sim *sim, peak_census *c)
{
    for (uint32_t i = 0; i < sim->node_count; i++) {
        const ms__sim_node *node = &sim->nodes[i];
        for (uint32_t s = 0; s < node->profile->save_count + node->profile->input_count; s++) {
            const ms__slot *slot = &sim->slots[node->first_slot + s];
            if (slot->state != MS__SLOT_AWAY) {
                continue;
            }
            uint32_t instance = sim->fetches[slot->entry].instance;
            if (sim->instances[instance].landed) {
                peak_claim(c, instance, MS_PEAK_FETCHED, i);
            } else if (!sim->instances[instance].natural) {
                peak_claim(c, instance, MS_PEAK_STORING, i);
            }
        }
    }
}

static void peak_add_part(peak_census *c, ms_peak_kind kind, uint32_t node, uint32_t storages, uint64_t bytes)
{
    size_t row = node == MS_NO_NODE ? c->node_count : node;
    ms_peak_part *part = &c->parts[(size_t)kind * (c->node_count + 1) + row];
    *part = (ms_peak_part){kind, node, part->storages + storages, ms__add_sat(part->bytes, bytes)};
}

/* Bit-packed saved storages, which belong to no instance. Returns their bytes. */
static uint64_t add_bits(const ms__sim *sim, peak_census *c)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < sim->node_count; i++) {
        const ms__sim_node *node = &sim->nodes[i];
        for (uint32_t s = 0; s < node->profile->save_count; s++) {
            uint32_t state = sim->slots[node->first_slot + s].state;
            if (state == MS__SLOT_BITS || state == MS__SLOT_UNPACKED) {
                peak_add_part(c, MS_PEAK_SAVED, i, 1, node->profile->bits[s].bytes);
                sum += node->profile->bits[s].bytes;
            }
        }
    }
    return sum;
}

static void claim_roles(const ms__sim *sim, peak_census *c)
{
    for (uint32_t i = 0; i < sim->instance_count; i++) {
        uint32_t role = i < sim->graph->storage_count ? sim->graph->storages[i].role : MS_STORAGE_ACTIVATION;
        if (c->logits[i]) {
            peak_claim(c, i, MS_PEAK_LOGITS, MS_NO_NODE);
        } else if (role == MS_STORAGE_GRADIENT) {
            peak_claim(c, i, MS_PEAK_GRADIENTS, MS_NO_NODE);
        } else if (role == MS_STORAGE_OUTPUT) {
            peak_claim(c, i, MS_PEAK_OUTPUTS, MS_NO_NODE);
        }
    }
}

static void peak_look(const ms__sim *sim, void *context)
{
    peak_census *c = context;
    c->event = sim->current_event;
    c->again = sim->again;
    claim_roles(sim, c);
    claim_slots(sim, c, MS__SLOT_HELD, MS_PEAK_SAVED, MS_PEAK_ARGUMENTS);
    claim_slots(sim, c, MS__SLOT_REBUILT, MS_PEAK_REBUILT, MS_PEAK_ARGUMENTS);
    claim_slots(sim, c, MS__SLOT_UNPACKED, MS_PEAK_REBUILT, MS_PEAK_ARGUMENTS);
    claim_away(sim, c);
    for (uint32_t i = 0; i < sim->instance_count; i++) {
        if (sim->instances[i].holds > 0) {
            peak_claim(c, i, MS_PEAK_WORKING, sim->current_node < sim->node_count ? sim->current_node : MS_NO_NODE);
            peak_add_part(c, (ms_peak_kind)c->kind[i], c->node[i], 1, sim->instance_bytes[i]);
        }
    }
    uint64_t outer = sim->live_bytes + sim->small_bytes - add_bits(sim, c);
    c->small_bytes = sim->small_bytes;
    for (uint32_t i = 0; i < sim->instance_count; i++) {
        outer -= sim->instances[i].holds > 0 ? sim->instance_bytes[i] : 0;
    }
    peak_add_part(c, MS_PEAK_OUTER_LOSS, MS_NO_NODE, 0, outer);
}

/* ---- memory besides the step's own tensors -------------------------------------------------- */

/* Takes up to `bytes` from `*left`; returns the amount. */
static uint64_t take_bytes(uint64_t *left, uint64_t bytes)
{
    uint64_t taken = ms__min_u64(*left, bytes);
    *left -= taken;
    return taken;
}

static void add_residents(const ms__search *search, peak_census *c)
{
    const ms__sim *sim = search->sim, *traced = search->steps[0].sim;
    const ms_residents *residents = &sim->graph->residents;
    const ms_process *process = &sim->hardware->process;
    uint64_t parameters = ms__sub_sat(sim->parameter_bytes, residents->buffer_bytes);
    uint64_t left = sim->resident_bytes - sim->reserve_bytes;
    uint64_t beside = take_bytes(&left, ms__sub_sat(sim->resident_bytes, traced->resident_bytes));
    uint64_t scratch = take_bytes(&left, ms__process_scratch(process, sim->graph) - sim->reserve_bytes);
    peak_add_part(c, MS_PEAK_WORKSPACE, MS_NO_NODE, 0, ms__add_sat(beside, scratch));
    peak_add_part(c, MS_PEAK_PARAMETERS, MS_NO_NODE, 0, take_bytes(&left, parameters));
    peak_add_part(c, MS_PEAK_BUFFERS, MS_NO_NODE, 0, take_bytes(&left, residents->buffer_bytes));
    peak_add_part(c, MS_PEAK_BATCH, MS_NO_NODE, 0, take_bytes(&left, residents->batch_bytes));
    peak_add_part(c, MS_PEAK_RUNTIME, MS_NO_NODE, 0, left);
}

static void add_carried(const ms__sim *sim, ms__phase phase, peak_census *c)
{
    ms__carried carried = ms__sim_carried(sim, phase, false);
    peak_add_part(c, MS_PEAK_OPTIMIZER_STATE, MS_NO_NODE, 0, carried.state_bytes);
    peak_add_part(c, MS_PEAK_OPTIMIZER_WORK, MS_NO_NODE, 0, carried.transient_bytes);
    peak_add_part(c, MS_PEAK_OUTPUTS, MS_NO_NODE, 0, carried.output_bytes);
    peak_add_part(c, MS_PEAK_GRADIENTS, MS_NO_NODE, 0, carried.gradient_bytes);
    peak_add_part(c, MS_PEAK_PENDING, MS_NO_NODE, 0, carried.pending_bytes);
}

/* ---- the list ------------------------------------------------------------------------------- */

static int compare_parts(const void *left, const void *right)
{
    const ms_peak_part *a = left, *b = right;
    if (a->bytes != b->bytes) {
        return a->bytes > b->bytes ? -1 : 1;
    }
    if (a->kind != b->kind) {
        return a->kind < b->kind ? -1 : 1;
    }
    return (a->node > b->node) - (a->node < b->node);
}

static int list_parts(peak_census *c, ms_explanation *why)
{
    size_t cells = (size_t)MS_PEAK_KIND_COUNT * (c->node_count + 1), count = 0;
    for (size_t i = 0; i < cells; i++) {
        if (c->parts[i].bytes > 0) {
            c->parts[count++] = c->parts[i];
        }
    }
    qsort(c->parts, count, sizeof *c->parts, compare_parts);
    why->parts = ms_calloc(count > 0 ? count : 1, sizeof *why->parts);
    if (why->parts == NULL) {
        return MS_ENOMEM;
    }
    memcpy(why->parts, c->parts, count * sizeof *why->parts);
    why->part_count = (uint32_t)count;
    return MS_OK;
}

/* Replays the plan without a cache twice: to find its peak, and to look at it. */
static void take_census(ms__search *search, const ms__variant *chosen, peak_census *c, ms_plan *plan)
{
    ms__sim *sim = search->sim;
    const ms__candidate *candidate = &search->items[chosen->candidate];
    const uint8_t *row = ms__candidate_row(search, chosen->candidate);
    ms_choices choices = ms__search_choices(search, row, candidate->window, 0);
    ms__outcome outcome;
    sim->in_full = true;
    ms__sim_run_expected(sim, &choices, &outcome);
    uint64_t fixed = outcome.fixed_bytes, live = outcome.live_peak_bytes;
    ms__phase phase = outcome.peak_phase;
    sim->watch = (ms__watch){.tick = outcome.peak_tick, .look = peak_look, .context = c};
    ms__sim_run_expected(sim, &choices, &outcome);
    sim->watch = (ms__watch){0};
    sim->in_full = false;
    peak_add_part(c, MS_PEAK_CACHE, MS_NO_NODE, 0, ms__sub_sat(sim->small_peak_bytes, c->small_bytes));
    plan->why.peak_phase = (uint32_t)phase;
    plan->why.peak_event = phase == MS__OPTIMIZER ? 0 : c->event;
    plan->why.peak_again = c->again;
    add_carried(sim, phase, c);
    add_residents(search, c);
    uint64_t slab = fixed - sim->resident_bytes, expected = fixed - sim->reserve_bytes;
    peak_add_part(c, MS_PEAK_SLAB, MS_NO_NODE, 0, slab);
    peak_add_part(c, MS_PEAK_CACHE, MS_NO_NODE, 0, ms__sub_sat(plan->replay.peak_bytes, ms__add_sat(expected, live)));
}

int ms__explain_peak(ms__search *search, const ms__variant *chosen, ms_plan *plan)
{
    ms__search_use(search, search->items[chosen->candidate].step);
    size_t instances = search->sim->instance_count, nodes = search->node_count;
    peak_census c = {.node_count = search->node_count};
    uint8_t *logits = ms_calloc(instances, 1);
    c.kind = ms_calloc(instances, 1);
    c.node = ms_calloc(instances, sizeof *c.node);
    c.parts = ms_calloc((size_t)MS_PEAK_KIND_COUNT * (nodes + 1), sizeof *c.parts);
    int rc = logits != NULL && c.kind != NULL && c.node != NULL && c.parts != NULL ? MS_OK : MS_ENOMEM;
    if (rc == MS_OK) {
        memset(c.kind, MS_PEAK_KIND_COUNT, instances);
        mark_logits(search->steps[0].sim, search->sim, logits);
        c.logits = logits;
        take_census(search, chosen, &c, plan);
        rc = list_parts(&c, &plan->why);
        plan->why.timed_bytes = chosen->bytes;
        plan->why.known = rc == MS_OK;
    }
    ms_free(logits);
    ms_free(c.kind);
    ms_free(c.node);
    ms_free(c.parts);
    return rc;
}
