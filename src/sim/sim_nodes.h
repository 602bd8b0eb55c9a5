/*
 * Storages, slots and lives of a node, for the files that replay a step: sim_replay.c runs nodes, sim_again.c recomputes
 * them, sim_update.c updates their parameters, and sim_step.c runs a step of them. Tests: tests/c/sim/test_simulate.c.
 */
#ifndef MS_SIM_SIM_NODES_H
#define MS_SIM_SIM_NODES_H

#include "sim/sim.h"

enum { MS__NO_INSTANCE = UINT32_MAX };

static inline ms_technique ms__sim_technique_of(const ms__sim *sim, uint32_t index)
{
    return (ms_technique)sim->choices->technique[index];
}

/* ---- natural life ------------------------------------------------------------- */

static inline uint32_t ms__sim_role_of(const ms__sim *sim, uint32_t instance)
{
    return instance < sim->graph->storage_count ? sim->graph->storages[instance].role : MS_STORAGE_ACTIVATION;
}

static inline void ms__sim_end_life(ms__sim *sim, uint32_t instance)
{
    if (sim->instances[instance].natural) {
        sim->instances[instance].natural = 0;
        ms__sim_release(sim, instance);
    }
}

static inline void ms__sim_begin_life(ms__sim *sim, uint32_t instance)
{
    ms__sim_end_life(sim, instance);
    /* Gradients are added, one at a time, to those of the previous step. */
    if (ms__sim_role_of(sim, instance) == MS_STORAGE_GRADIENT && ms__sim_accumulates(&sim->graph->loop)) {
        if (sim->adding_gradient != MS__NO_INSTANCE) {
            ms__sim_end_life(sim, sim->adding_gradient);
        }
        sim->adding_gradient = instance;
    }
    sim->instances[instance].natural = 1;
    ms__sim_acquire(sim, instance);
}

/* ---- slots ---------------------------------------------------------------------- */

/* The instance of a storage in a replay: a fresh one if the layer makes it. */
static inline uint32_t ms__sim_replay_instance(const ms__sim_node *node, uint32_t storage)
{
    return node->profile->made[storage] ? node->first_replay + storage : ms__sim_instance_of(node, storage);
}

static inline void ms__sim_hold_slot(ms__sim *sim, ms__slot *slot, uint32_t instance, ms__slot_state state)
{
    slot->state = state;
    ms__sim_acquire(sim, instance);
}

/* Whether the shorter programs may run: with a cache they may not, because the order of frees matters. */
static inline bool ms__sim_runs_short(const ms__sim *sim)
{
    return !sim->cache.on && !sim->in_full;
}

/* ---- between these files ------------------------------------------------------ */

/* sim_replay.c */
void ms__sim_run_forward(ms__sim *sim, uint32_t index);
void ms__sim_run_backward(ms__sim *sim, uint32_t index);
/* Releases the loss outside the model. */
void ms__sim_leave_loss(ms__sim *sim);

/* sim_update.c: the time of the optimizer's updates. The first function is called when a pass begins, the second when a
 * storage is freed, the third when backward has ended. */
void ms__sim_begin_updates(ms__sim *sim);
void ms__sim_update(ms__sim *sim, uint32_t instance);
void ms__sim_end_updates(ms__sim *sim);

/* sim_again.c: in backward, recomputes the tensors that the node's forward did not keep. */
void ms__sim_run_again(ms__sim *sim, const ms__sim_node *node);

#endif
