/*
 * Owners of the bytes on the device at one moment, for the timeline of a report. Called at each sample of a pass.
 */
#include "base/units.h"
#include "sim/sim.h"

const char *ms_owner_name(ms_owner owner)
{
    static const char *const names[MS_OWNER_COUNT] = {
#define OWNER_NAME(id, name) [MS_OWNER_##id] = name,
        MS_OWNER_TABLE(OWNER_NAME)
#undef OWNER_NAME
    };
    return (unsigned)owner < MS_OWNER_COUNT ? names[owner] : "unknown";
}

static void count_once(ms__sim *sim, uint32_t instance, uint64_t *bytes)
{
    if (sim->instances[instance].holds > 0 && !sim->instances[instance].counted) {
        sim->instances[instance].counted = 1;
        *bytes += sim->instance_bytes[instance];
    }
}

/* Bytes that one node holds for its backward: saved, rebuilt, fetched, packed. */
static void count_node(ms__sim *sim, const ms__sim_node *node, uint64_t *bytes)
{
    const ms__sim_profile *profile = node->profile;
    for (uint32_t s = 0; s < profile->save_count + profile->input_count; s++) {
        bool is_save = s < profile->save_count;
        uint32_t storage = is_save ? profile->saved[s] : profile->inputs[s - profile->save_count];
        const ms__slot *slot = &sim->slots[node->first_slot + s];
        if (slot->state == MS__SLOT_AWAY) {
            count_once(sim, sim->fetches[slot->entry].instance, bytes);
        } else if (slot->state == MS__SLOT_REBUILT && profile->made[storage]) {
            count_once(sim, node->first_replay + storage, bytes);
        } else if (slot->state != MS__SLOT_NONE && slot->state != MS__SLOT_LOST) {
            count_once(sim, ms__sim_instance_of(node, storage), bytes);
        }
        if (is_save && (slot->state == MS__SLOT_BITS || slot->state == MS__SLOT_UNPACKED)) {
            *bytes += profile->bits[s].bytes;
        }
    }
}

static void count_roles(ms__sim *sim, uint64_t *owners)
{
    for (uint32_t i = 0; i < sim->graph->storage_count && i < sim->instance_count; i++) {
        if (sim->graph->storages[i].role == MS_STORAGE_GRADIENT) {
            count_once(sim, i, &owners[MS_OWNER_GRADIENTS]);
        } else if (sim->graph->storages[i].role == MS_STORAGE_OUTPUT) {
            count_once(sim, i, &owners[MS_OWNER_HEAD]);
        }
    }
}

void ms__sim_owners(ms__sim *sim, uint64_t fixed_bytes, uint64_t device_bytes, uint64_t *owners)
{
    ms__carried carried = ms__sim_carried(sim, sim->phase, false);
    for (uint32_t i = 0; i < sim->instance_count; i++) {
        sim->instances[i].counted = 0;
    }
    owners[MS_OWNER_PARAMETERS] = ms__min_u64(fixed_bytes, sim->parameter_bytes);
    owners[MS_OWNER_PROCESS] = fixed_bytes - owners[MS_OWNER_PARAMETERS];
    owners[MS_OWNER_STATE] = carried.state_bytes + carried.transient_bytes;
    owners[MS_OWNER_GRADIENTS] = carried.gradient_bytes;
    owners[MS_OWNER_HEAD] = carried.output_bytes + (sim->loss_held ? sim->loss_bytes : 0);
    count_roles(sim, owners);
    for (uint32_t i = 0; i < sim->node_count; i++) {
        count_node(sim, &sim->nodes[i], &owners[sim->nodes[i].is_root ? MS_OWNER_HEAD : MS_OWNER_LAYERS]);
    }
    owners[MS_OWNER_LAYERS] += carried.pending_bytes;
    owners[MS_OWNER_CACHE] = sim->cache.cached_bytes + ms__sub_sat(sim->small_peak_bytes, sim->small_bytes);
    uint64_t left = device_bytes;
    for (int i = 0; i < MS_OWNER_COUNT; i++) { /* what no owner claims is being worked on */
        owners[i] = i == MS_OWNER_WORKING ? 0 : ms__min_u64(owners[i], left);
        left -= owners[i];
    }
    owners[MS_OWNER_WORKING] = left;
}
