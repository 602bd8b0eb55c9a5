/*
 * Bit packing in the simulator: the bytes and times of two-valued saved storages, their order within a node,
 * and the events. The compiler and the replay call it; ms_choices.packed says which storages are packed.
 */
#include <stdlib.h>

#include "base/units.h"
#include "sim/sim_nodes.h"

/* Besides the bits, a block holds a few words that describe the storage. */
enum { HEADER_BYTES = 48 };

/* Assumed rates, as parts of the element-wise rate, for a description without them. They are on the slow
 * side, as on a loaded machine: one thread packs at 3.6 to 3.9 GB/s and unpacks at 2.2 to 2.7
 * (docs/results). */
enum { PACK_PART_OF_STREAM = 8, UNPACK_PART_OF_STREAM = 12 };

/* On a GPU the host's operators pack and unpack (memscale/execution/bits.py): the bytes that they read and write for
 * each byte of a mask, and the host's time for the calls, measured with torch's CPU operators on masks of 4 KB. */
enum { GPU_PACK_PASSES = 3, GPU_UNPACK_PASSES = 4, GPU_PACK_NS = 80000, GPU_UNPACK_NS = 100000 };

/* ---- compiling ------------------------------------------------------------------------ */

static uint64_t bits_scan_ns(const ms__sim *sim, uint64_t bytes, uint64_t bytes_per_s, uint64_t part_of_stream)
{
    const ms_cpu *cpu = &sim->hardware->cpu;
    uint64_t rate = bytes_per_s > 0 ? bytes_per_s : cpu->stream_bytes_per_s / part_of_stream;
    return ms__scaled_ns(sim, ms__add_sat(ms__rate_ns(bytes, rate), MS__HANDLING_NS));
}

static uint64_t bits_gpu_ns(const ms__sim *sim, uint64_t bytes, uint64_t launch_ns)
{
    const ms_gpu *gpu = ms_hardware_gpu(sim->hardware);
    return ms__scaled_ns(sim, ms__add_sat(ms__rate_ns(bytes, gpu->stream_bytes_per_s), launch_ns));
}

static ms__sim_bits bits_measure_gpu(const ms__sim *sim, uint64_t storage_bytes)
{
    uint64_t bytes = sim->device_kind->rounded(ms__div_up(storage_bytes, 8));
    return (ms__sim_bits){
        .bytes = bytes,
        .saved_bytes = ms__sub_sat(sim->device_kind->rounded(storage_bytes), bytes),
        .pack_ns = bits_gpu_ns(sim, ms__mul_sat(storage_bytes, GPU_PACK_PASSES), GPU_PACK_NS),
        .unpack_ns = bits_gpu_ns(sim, ms__mul_sat(storage_bytes, GPU_UNPACK_PASSES), GPU_UNPACK_NS),
    };
}

static ms__sim_bits bits_measure(const ms__sim *sim, uint64_t storage_bytes, uint64_t value_bytes)
{
    if (!sim->on_host) {
        return value_bytes == 1 ? bits_measure_gpu(sim, storage_bytes) : (ms__sim_bits){0}; /* only truth values */
    }
    const ms_cpu *cpu = &sim->hardware->cpu;
    uint64_t bytes = ms__div_up(storage_bytes / value_bytes, 8) + HEADER_BYTES;
    return (ms__sim_bits){
        .bytes = bytes,
        .saved_bytes = ms__sub_sat(storage_bytes, bytes),
        .pack_ns = bits_scan_ns(sim, storage_bytes, cpu->pack_bytes_per_s, PACK_PART_OF_STREAM),
        .unpack_ns = bits_scan_ns(sim, storage_bytes, cpu->unpack_bytes_per_s, UNPACK_PART_OF_STREAM),
    };
}

/* Whether `a` frees a byte at a lower cost than `b`. */
static bool is_cheaper(const ms__sim_bits *a, const ms__sim_bits *b)
{
    return ms__compare_quotients(ms__add_sat(a->pack_ns, a->unpack_ns), a->saved_bytes,
                                 ms__add_sat(b->pack_ns, b->unpack_ns), b->saved_bytes) < 0;
}

/* Equal costs keep the order of saving. Profiles have a handful, so counting is fast enough. */
static void bits_rank(ms__sim_profile *profile)
{
    for (uint32_t i = 0; i < profile->save_count; i++) {
        uint32_t before = 0;
        for (uint32_t k = 0; profile->bits[i].saved_bytes > 0 && k < profile->save_count; k++) {
            bool other = k != i && profile->bits[k].saved_bytes > 0;
            bool earlier = is_cheaper(&profile->bits[k], &profile->bits[i]) ||
                           (k < i && !is_cheaper(&profile->bits[i], &profile->bits[k]));
            before += other && earlier;
        }
        profile->bits[i].rank = profile->bits[i].saved_bytes > 0 ? before + 1 : 0;
    }
}

int ms__bits_compile(const ms__sim *sim, const ms_profile *from, const uint32_t *slot_of, ms__sim_profile *to)
{
    to->bits = ms_calloc(from->storage_count, sizeof *to->bits);
    if (to->bits == NULL) {
        return MS_ENOMEM;
    }
    for (uint32_t i = 0; i < from->two_valued.count && to->bits_count < MS__BITS_MOST; i++) {
        const ms_storage_bytes *one = &from->two_valued.items[i];
        ms__sim_bits bits = bits_measure(sim, from->storage_bytes[one->storage], one->bytes);
        if (bits.saved_bytes > 0 && slot_of[one->storage] != UINT32_MAX) {
            to->bits[slot_of[one->storage]] = bits;
            to->bits_count++;
        }
    }
    if (to->bits_count > 0) {
        bits_rank(to);
    }
    return MS_OK;
}

/* ---- events ---------------------------------------------------------------------------- */

static const ms__sim_bits *bits_of(const ms__sim *sim, const ms__sim_node *node, const ms__slot *slot)
{
    return &node->profile->bits[slot - &sim->slots[node->first_slot]];
}

bool ms__bits_possible(ms_technique technique)
{
    return ms_technique_of(technique)->rest != MS_REST_NONE;
}

static void bits_spend(ms__sim *sim, uint64_t ns)
{
    sim->packing_ns = ms__add_sat(sim->packing_ns, ns);
    ms__sim_spend(sim, ns);
}

bool ms__bits_made(ms__sim *sim, const ms__sim_node *node, uint32_t index, ms__slot *slot)
{
    const ms_choices *choices = sim->choices;
    const ms__sim_bits *bits = &node->profile->bits[index];
    uint32_t at = (uint32_t)(node - sim->nodes);
    uint32_t instance = ms__sim_instance_of(node, node->profile->saved[index]);
    if (choices->packed == NULL || bits->rank == 0 || bits->rank > choices->packed[at] || node->is_root ||
        !ms__bits_possible(ms__sim_technique_of(sim, at)) ||
        sim->instance_bytes[instance] < ms__max_u64(choices->offload_min_bytes, 1)) {
        return false;
    }
    slot->state = MS__SLOT_BITS;
    ms__sim_take_small(sim, bits->bytes);
    bits_spend(sim, bits->pack_ns);
    sim->packed_bytes += sim->instance_bytes[instance];
    return true;
}

void ms__bits_unpack(ms__sim *sim, const ms__sim_node *node, uint32_t storage, ms__slot *slot)
{
    if (slot->state != MS__SLOT_BITS) {
        return;
    }
    ms__sim_hold_slot(sim, slot, ms__sim_instance_of(node, storage), MS__SLOT_UNPACKED);
    bits_spend(sim, bits_of(sim, node, slot)->unpack_ns);
}

void ms__bits_drop(ms__sim *sim, const ms__sim_node *node, const ms__slot *slot)
{
    ms__sim_give_small(sim, bits_of(sim, node, slot)->bytes);
}
