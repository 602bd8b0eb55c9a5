/*
 * Shorter programs for replays without a cache, of which the search runs thousands. Between two events that
 * involve saves, arguments or other nodes, all events become one, a stretch, with the same effect to the byte
 * and the nanosecond. Built when the simulator is compiled. With a cache the order of frees matters, so those
 * replays run the whole programs.
 */
#include <string.h>

#include "base/units.h"
#include "sim/sim.h"

enum {
    CHANGES_MOST = 16,      /* classes of one stretch; lookup is linear */
    EVENTS_MOST = 1 << 16   /* of one stretch; with the next bound, its sums fit in 63 bits */
};
static const uint64_t private_bytes_most = (uint64_t)1 << 42;

/* A storage's state. A private one begins and ends in one program and has no other reference: its life is
 * its only hold. */
enum { UNSEEN, BORN_FORWARD, PRIVATE_FORWARD, BORN_BACKWARD, PRIVATE_BACKWARD, SHARED };

typedef struct stretch_builder {
    const ms__sim *sim;
    const ms__sim_node *node;
    ms__sim_profile *profile;
    uint8_t *states;         /* [storage_count] */
    uint32_t stretch_count, change_count;
    uint32_t event_count;    /* of the open stretch; 0: none is open */
    int64_t bytes, small_bytes;
} stretch_builder;

/* ---- private storages ----------------------------------------------------------- */

static void stretch_note_event(uint8_t *state, const ms__op *op, uint8_t born, uint8_t ended)
{
    if (op->kind == MS_EVENT_ALLOC && *state == UNSEEN) {
        *state = born;
    } else if (op->kind == MS_EVENT_FREE && *state == born) {
        *state = ended;
    } else if (op->kind != MS_EVENT_WORK) {
        *state = SHARED;
    }
}

/* Storages that are live at the end of a program or of a node's replay are not private. */
static void share_living(const stretch_builder *b, uint8_t born)
{
    for (uint32_t i = 0; i < b->profile->storage_count; i++) {
        b->states[i] = b->states[i] == born ? SHARED : b->states[i];
    }
}

static uint32_t stretch_instance(const stretch_builder *b, uint32_t storage)
{
    return b->node->first_local + (storage - b->profile->external_count);
}

static void find_private(const stretch_builder *b)
{
    const ms__sim_profile *profile = b->profile;
    memset(b->states, UNSEEN, profile->storage_count);
    for (uint32_t i = 0; i < profile->storage_count; i++) {
        bool local = i >= profile->external_count;
        if (!local || b->sim->instance_bytes[stretch_instance(b, i)] > private_bytes_most) {
            b->states[i] = SHARED;
        }
    }
    for (uint32_t i = 0; i < profile->input_count; i++) {
        b->states[profile->inputs[i]] = SHARED;
    }
    for (uint32_t i = 0; i < profile->forward_count; i++) {
        if (i == profile->replay_count) {
            share_living(b, BORN_FORWARD);
        }
        if (profile->forward[i].kind != MS_EVENT_WORK) {
            stretch_note_event(&b->states[profile->forward[i].storage], &profile->forward[i], BORN_FORWARD,
                               PRIVATE_FORWARD);
        }
    }
    share_living(b, BORN_FORWARD);
    for (uint32_t i = 0; i < profile->backward_count; i++) {
        if (profile->backward[i].kind != MS_EVENT_WORK) {
            stretch_note_event(&b->states[profile->backward[i].storage], &profile->backward[i], BORN_BACKWARD,
                               PRIVATE_BACKWARD);
        }
    }
    share_living(b, BORN_BACKWARD);
}

/* ---- stretches -------------------------------------------------------------------- */

static ms__class_change *stretch_change(stretch_builder *b, ms__stretch *stretch, uint32_t class_id)
{
    ms__class_change *changes = &b->profile->changes[stretch->first_change];
    for (uint32_t i = 0; i < stretch->change_count; i++) {
        if (changes[i].class_id == class_id) {
            return &changes[i];
        }
    }
    changes[stretch->change_count] = (ms__class_change){.class_id = class_id};
    b->change_count++;
    return &changes[stretch->change_count++];
}

static void stretch_add_life(stretch_builder *b, ms__stretch *stretch, const ms__op *op)
{
    uint32_t instance = stretch_instance(b, op->storage);
    int64_t bytes = (int64_t)b->sim->instance_bytes[instance];
    uint32_t class_id = b->sim->instance_class[instance];
    int sign = op->kind == MS_EVENT_ALLOC ? 1 : -1;
    bool is_small = class_id == MS__NO_CLASS && b->sim->on_host;
    if (!is_small) {
        b->bytes += sign * bytes;
        stretch->most_bytes = b->bytes > stretch->most_bytes ? b->bytes : stretch->most_bytes;
        stretch->after_bytes = b->bytes;
    } else {
        b->small_bytes += sign * bytes;
        stretch->small_most_bytes =
            b->small_bytes > stretch->small_most_bytes ? b->small_bytes : stretch->small_most_bytes;
        stretch->small_after_bytes = b->small_bytes;
    }
    if (class_id == MS__NO_CLASS) {
        return;
    }
    ms__class_change *change = stretch_change(b, stretch, class_id);
    change->after += sign;
    change->most = change->after > change->most ? change->after : change->most;
    stretch->fault_ns = ms__add_sat(stretch->fault_ns, sign > 0 ? b->sim->class_fault_ns[class_id] : 0);
}

/* Whether the event can join a stretch. */
static bool stretch_takes(const stretch_builder *b, const ms__op *op)
{
    if (op->kind == MS_EVENT_WORK) {
        return true;
    }
    uint8_t state = b->states[op->storage];
    return state == PRIVATE_FORWARD || state == PRIVATE_BACKWARD;
}

static uint32_t stretch_program(stretch_builder *b, const ms__op *ops, uint32_t count, ms__op *out,
                                uint32_t *replay_count)
{
    ms__sim_profile *profile = b->profile;
    uint32_t written = 0;
    b->event_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (ops[i].kind == MS_EVENT_FINAL) {
            continue; /* a mark without effect */
        }
        if (!stretch_takes(b, &ops[i])) {
            out[written++] = ops[i];
            b->event_count = 0;
            if (ops[i].kind == MS_EVENT_SAVE) {
                *replay_count = written;
            }
            continue;
        }
        bool full = b->event_count == EVENTS_MOST ||
                    (b->event_count > 0 && profile->stretches[b->stretch_count - 1].change_count == CHANGES_MOST);
        if (b->event_count == 0 || full) {
            profile->stretches[b->stretch_count] = (ms__stretch){.first_change = b->change_count};
            out[written++] = (ms__op){.kind = MS__OP_STRETCH, .value = b->stretch_count++};
            b->event_count = 0;
            b->bytes = b->small_bytes = 0;
        }
        b->event_count++;
        ms__stretch *stretch = &profile->stretches[b->stretch_count - 1];
        if (ops[i].kind == MS_EVENT_WORK) {
            stretch->ns = ms__add_sat(stretch->ns, ops[i].value);
        } else {
            stretch_add_life(b, stretch, &ops[i]);
        }
    }
    return written;
}

static int stretch_profile(stretch_builder *b)
{
    ms__sim_profile *profile = b->profile;
    size_t events = (size_t)profile->forward_count + profile->backward_count;
    profile->short_forward = ms_calloc(profile->forward_count, sizeof *profile->short_forward);
    profile->short_backward = ms_calloc(profile->backward_count, sizeof *profile->short_backward);
    profile->stretches = ms_calloc(events, sizeof *profile->stretches);
    profile->changes = ms_calloc(events, sizeof *profile->changes);
    if (profile->short_forward == NULL || profile->short_backward == NULL || profile->stretches == NULL ||
        profile->changes == NULL) {
        return MS_ENOMEM;
    }
    uint32_t unused = 0;
    find_private(b);
    b->stretch_count = b->change_count = 0;
    profile->short_forward_count = stretch_program(b, profile->forward, profile->forward_count, profile->short_forward,
                                                   &profile->short_replay_count);
    profile->short_backward_count =
        stretch_program(b, profile->backward, profile->backward_count, profile->short_backward, &unused);
    return MS_OK;
}

int ms__stretches_compile(ms__sim *sim)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < sim->profile_count; i++) {
        most = sim->profiles[i].storage_count > most ? sim->profiles[i].storage_count : most;
    }
    stretch_builder b = {.sim = sim, .states = ms_calloc(most, 1)};
    int rc = b.states != NULL ? MS_OK : MS_ENOMEM;
    for (uint32_t i = 0; rc == MS_OK && i < sim->node_count; i++) {
        b.node = &sim->nodes[i];
        b.profile = &sim->profiles[sim->graph->nodes[i].profile];
        rc = b.profile->stretches == NULL ? stretch_profile(&b) : MS_OK;
    }
    ms_free(b.states);
    return rc;
}

void ms__stretches_clear(ms__sim_profile *profile)
{
    ms_free(profile->short_forward);
    ms_free(profile->short_backward);
    ms_free(profile->stretches);
    ms_free(profile->changes);
}
