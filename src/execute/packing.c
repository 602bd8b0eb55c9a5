/*
 * Bit packing of two-valued storages: they stay in memory as bits, at an eighth to a
 * sixty-fourth of their size, without a transfer. The plan decides on those that the trace knows
 * (graph.h), and counts their savings and time. If the plan moves anything, other saved storages
 * are scanned for two values; the plan counts no savings of these.
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

static void packing_count(ms_execute *execute, const ms_extent *extent)
{
    uint64_t packed_bytes = ms__packed_bytes(extent->packed);
    execute->packed_bytes += packed_bytes;
    ms_counter_add(&execute->counters, MS_COUNTER_PACKED_BYTES, extent->bytes);
    ms_counter_add(&execute->counters, MS_COUNTER_PACKED_INTO_BYTES, packed_bytes);
}

static bool packing_is_wanted(const ms_execute *execute, const ms_frame *frame, uintptr_t identity)
{
    ms__bits said = ms__choice_bits(&frame->choice, identity);
    bool is_kept = ms_frame_rest_stays(frame);
    return said == MS__BITS_UNKNOWN ? execute->packs_found || !is_kept : said == MS__BITS_PACKED;
}

ms_extent *ms__extent_pack(ms_execute *execute, const ms_frame *frame, uintptr_t identity, uint64_t version,
                           const void *address, uint64_t bytes, void *memory)
{
    uint64_t frame_serial = frame->serial;
    if (!execute->is_packing || !execute->host_is_device || !packing_is_wanted(execute, frame, identity) ||
        !ms__pack_may(address, bytes) || !ms__extents_have_room(execute)) {
        return NULL;
    }
    ms__packed *packed = pack_unlocked(&execute->host, address, bytes);
    ms_extent *made = packed != NULL ? ms_calloc(1, sizeof *made) : NULL;
    if (made == NULL) {
        ms__packed_free(packed);
        return NULL;
    }
    *made = (ms_extent){.identity = identity,
                        .version = version,
                        .bytes = bytes,
                        .packed = packed,
                        .frame_serial = frame_serial,
                        .source = memory,
                        .handles = 1,
                        .state = MS__EXTENT_STORED};
    ms__extent_enroll(execute, made);
    packing_count(execute, made);
    /* Releasing the storage may run any code. */
    made->pins++;
    execute->host.weaken(execute->host.context, memory);
    made->pins--;
    return made;
}

void ms__extent_unpack(ms_execute *execute, const ms_extent *extent, void *address)
{
    const ms_execute_host *host = &execute->host;
    if (host->unlock != NULL) {
        host->unlock(host->context);
    }
    ms__unpack(extent->packed, address);
    if (host->lock != NULL) {
        host->lock(host->context);
    }
}

void ms__extent_forget_bits(ms_execute *execute, ms_extent *extent)
{
    if (extent->packed != NULL) {
        execute->packed_bytes -= ms__packed_bytes(extent->packed);
        ms__packed_free(extent->packed);
        extent->packed = NULL;
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
    return execute->is_packing && (execute->packs_found || ms__selection_packs(execute, selection));
}

bool ms_frame_packs(const ms_frame *frame)
{
    return frame->packs;
}
