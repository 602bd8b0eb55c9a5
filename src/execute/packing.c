/*
 * Bit packing of two-valued storages: they stay in memory as bits, at an eighth to a
 * sixty-fourth of their size, without a transfer. The plan decides on those that the trace knows
 * (graph.h), and counts their savings and time. If the plan moves anything, other saved storages
 * are scanned for two values; the plan counts no savings of these. A GPU's storages are packed by the host's
 * operators, and are not scanned: that would wait for the device.
 */
#include "execute/execute_internal.h"

#include "base/units.h"

static ms__packed *pack_unlocked(const ms_execute_host *host, const void *address, uint64_t bytes)
{
    if (host->unlock != NULL) {
        host->unlock(host->context);
    }
    ms__packed *packed = ms__pack(address, bytes);
    if (host->lock != NULL) {
        host->lock(host->context);
    }
    return packed;
}

static uint64_t packed_bytes_of(const ms_extent *extent)
{
    return extent->packed != NULL ? ms__packed_bytes(extent->packed) : ms__div_up(extent->bytes, 8);
}

static void packing_count(ms_execute *execute, const ms_extent *extent)
{
    uint64_t packed_bytes = packed_bytes_of(extent);
    execute->packed_bytes += packed_bytes;
    ms_counter_add(&execute->counters, MS_COUNTER_PACKED_BYTES, extent->bytes);
    ms_counter_add(&execute->counters, MS_COUNTER_PACKED_INTO_BYTES, packed_bytes);
}

static bool packing_is_wanted(const ms_execute *execute, const ms_frame *frame, uintptr_t identity)
{
    ms__bits said = ms__choice_bits(&frame->choice, identity);
    bool may_scan = execute->host_is_device && (execute->packs_found || !ms_frame_rest_stays(frame));
    return said == MS__BITS_UNKNOWN ? may_scan : said == MS__BITS_PACKED;
}

/* False if the storage has a third value, or when out of memory. */
static bool extent_make_bits(const ms_execute *execute, ms_extent *extent, const void *address, void *memory)
{
    const ms_execute_host *host = &execute->host;
    if (execute->host_is_device) {
        extent->packed = ms__pack_may(address, extent->bytes) ? pack_unlocked(host, address, extent->bytes) : NULL;
    } else {
        extent->bits = host->pack != NULL ? host->pack(host->context, memory) : NULL;
    }
    return ms_extent_is_packed(extent);
}

ms_extent *ms__extent_pack(ms_execute *execute, const ms_frame *frame, uintptr_t identity, uint64_t version,
                           const void *address, uint64_t bytes, void *memory)
{
    if (!execute->is_packing || !packing_is_wanted(execute, frame, identity) || !ms__extents_have_room(execute)) {
        return NULL;
    }
    ms_extent *made = ms_calloc(1, sizeof *made);
    if (made == NULL) {
        return NULL;
    }
    *made = (ms_extent){.identity = identity,
                        .version = version,
                        .bytes = bytes,
                        .frame_serial = frame->serial,
                        .source = memory,
                        .handles = 1,
                        .state = MS__EXTENT_STORED};
    if (!extent_make_bits(execute, made, address, memory)) {
        ms_free(made);
        return NULL;
    }
    ms__extent_enroll(execute, made);
    packing_count(execute, made);
    /* Releasing the storage may run any code. */
    made->pins++;
    execute->host.weaken(execute->host.context, memory);
    made->pins--;
    return made;
}

int ms__extent_unpack(ms_execute *execute, const ms_extent *extent, void *memory, void *address, ms_error *err)
{
    const ms_execute_host *host = &execute->host;
    if (extent->bits != NULL) {
        return host->unpack(host->context, extent->bits, memory, err);
    }
    if (host->unlock != NULL) {
        host->unlock(host->context);
    }
    ms__unpack(extent->packed, address);
    if (host->lock != NULL) {
        host->lock(host->context);
    }
    return MS_OK;
}

void ms__extent_forget_bits(ms_execute *execute, ms_extent *extent)
{
    if (!ms_extent_is_packed(extent)) {
        return;
    }
    execute->packed_bytes -= packed_bytes_of(extent);
    ms__packed_free(extent->packed);
    if (extent->bits != NULL) {
        execute->host.forget(execute->host.context, extent->bits);
    }
}

void ms__packing_tell(ms_execute *execute)
{
    uint64_t bytes = ms_counter_get(&execute->counters, MS_COUNTER_PACKED_BYTES);
    if (execute->packing_told || bytes == 0) {
        return;
    }
    execute->packing_told = true;
    ms_log(MS_LOG_INFO, "saved tensors of two values (masks) are kept as bits: %s in %s in the first step",
           ms__text_bytes(bytes).text,
           ms__text_bytes(ms_counter_get(&execute->counters, MS_COUNTER_PACKED_INTO_BYTES)).text);
}

void ms_execute_set_packing(ms_execute *execute, bool is_packing)
{
    execute->is_packing = is_packing;
}

bool ms__call_packs(const ms_execute *execute, uint32_t selection)
{
    bool may_scan = execute->host_is_device && execute->packs_found;
    return execute->is_packing && (may_scan || ms__selection_packs(execute, selection));
}

bool ms_frame_packs(const ms_frame *frame)
{
    return frame->packs;
}
