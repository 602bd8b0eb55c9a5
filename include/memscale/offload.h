/*
 * offload.h - moves bytes to a lower tier and back, asynchronously, verified.
 *
 * The executor stores the storages behind saved tensors and fetches them in backward.
 * Every transfer has a ticket. Worker threads move the bytes; nothing here knows of
 * tensors, plans or Python.
 *
 * Promises: a fetch either delivers the stored bytes or fails (XXH3 checked, but for a GPU's
 * bytes that stayed in host memory); every completion is checked; short transfers are resumed; memory is bounded by the slab; no
 * call waits longer than `timeout_ns`; nothing stays on disk, however the process ends.
 * Progress never depends on the caller: every accepted transfer ends without another call.
 *
 * An engine may be used from any number of threads. These calls may block:
 * ms_offload_wait(), ms_offload_quiesce(), ms_offload_close(), ms_offload_drop() of a
 * ticket in flight, and ms_offload_store() of memory that is not direct (it is copied
 * into slots first, and slots may be in use).
 *
 * Order: fetches that a caller waits for, then other fetches, then stores, each in the
 * order of the calls. All workers move a large transfer together, in pieces of a slot's
 * size, and more urgent transfers go between two pieces. If all workers are busy, waiting
 * small extents that are neighbours on disk are moved by one request; each keeps its
 * ticket, its checksum and its own result. No transfer is delayed to find neighbours.
 *
 * GPUs. With `from_device`, callers' memory is a GPU's, and the tier is host memory:
 * pinned up to `pinned_bytes` and the driver's limit, then pageable up to `cap_bytes`,
 * then on disk if a directory was given. A transfer begins after the work that was already
 * queued on the caller's stream at the call. It has ended once the host has observed its
 * end: work that is queued on any stream after ms_offload_wait() returned, or after the
 * state changed, runs after the transfer. A fetch passes stores that wait for the GPU's
 * compute: one worker takes fetches only.
 *
 * exit(): every engine is paused (bounded) before the process's destructors run.
 * fork(): every engine is paused before the fork and continues after it in the parent. In
 * the child it is unusable (MS_ESTATE); closing it there frees the child's copies and does
 * not touch the parent's engine.
 *
 * Tests: tests/c/offload/ (test_transfers.c, test_order.c, test_limits.c, test_faults.c,
 * test_process.c, test_cuda.c).
 */
#ifndef MEMSCALE_OFFLOAD_H
#define MEMSCALE_OFFLOAD_H

#include "memscale/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The tiers, fastest first. */
typedef enum ms_tier { MS_TIER_DEVICE, MS_TIER_HOST, MS_TIER_DISK, MS_TIER_COUNT } ms_tier;
/* "device", "host" or "disk"; "unknown" for any other number. */
MS_API const char *ms_tier_name(ms_tier tier);

/* Whether bytes are compressed losslessly on their way to the tier. */
typedef enum ms_compression {
    MS_COMPRESSION_AUTO,  /* on the disk tier, each piece that gains time according to the sampled
                             ratio, the codec's measured cost and the link's rates; none if the
                             rates are unknown. MEMSCALE_DISK_COMPRESSION=always|never in the
                             environment overrides this */
    MS_COMPRESSION_NEVER,
    MS_COMPRESSION_ALWAYS /* each piece that gets smaller, from host memory to any tier */
} ms_compression;

/* How to open an engine. */
typedef struct ms_offload_options {
    ms_tier tier;              /* MS_TIER_HOST: the memory backend; MS_TIER_DISK: a file */
    const char *dir;           /* of the spill file, created if missing; ignored for the host tier */
    uint64_t cap_bytes;        /* stores beyond it fail with MS_ENOSPC; UINT64_MAX: no cap */
    uint64_t slab_bytes;       /* for small and unaligned storages; 0: 32 MiB */
    uint64_t slot_bytes;       /* 0: 4 MiB */
    uint32_t worker_count;     /* threads, each moving one piece; 0: 3, so that two move while one
                                  hashes */
    uint64_t timeout_ns;       /* on one wait; 0: 120 s */
    ms_compression compression; /* saves time, not space: extents keep their full size on the tier.
                                   A GPU's memory is never compressed */
    uint64_t write_bytes_per_s, read_bytes_per_s; /* of the link, measured; 0: unknown */
    bool no_direct_io;         /* buffered I/O even if direct I/O is possible */
    bool no_verify;            /* no checksums; for measuring their cost */

    /* For a GPU's memory. With MS_TIER_HOST, `dir` is optional and takes what exceeds
     * `cap_bytes`. With MS_TIER_DISK everything goes there. */
    bool from_device;
    ms_device_kind device_kind; /* of the GPU; 0: MS_DEVICE_UNSTATED */
    uint32_t device;           /* its ordinal, as the driver counts */
    uint64_t pinned_bytes;     /* most host memory to pin; 0: cap_bytes, but at most half of the
                                  available memory */
    uint64_t pageable_write_bytes_per_s, pageable_read_bytes_per_s; /* of the link beyond it, measured, for the log;
                                  0: unknown */
    uint64_t disk_cap_bytes;   /* of the spill file; 0: no cap */
    uint32_t stream_count;     /* of the engine; 0: one per direction, or one if the GPU has one
                                  copy engine */
} ms_offload_options;

/* The engine, and one storage's place on its tier. */
typedef struct ms_offload ms_offload;
typedef uint64_t ms_ticket; /* 0: none */

/* Opens an engine and starts its workers. */
MS_API int ms_offload_open(const ms_offload_options *options, ms_offload **engine, ms_error *err);
/* Cancels queued pieces, waits (bounded) for pieces in motion, stops the workers, and
 * frees the file, the slab and every extent. Tickets are invalid afterwards. Waiting calls
 * of other threads return MS_ECANCELED first; no other call may be running. */
MS_API void ms_offload_close(ms_offload *engine);

/* The progress of a transfer. */
typedef enum ms_ticket_state {
    MS_TICKET_STORING,  /* the source is still read: keep it alive and unchanged */
    MS_TICKET_STORED,   /* the tier has the bytes */
    MS_TICKET_FETCHING, /* the destination is being written */
    MS_TICKET_FETCHED,  /* destination and tier have the bytes. For a GPU they are verified and their copies to
                         * the destination are queued: see ms_offload_order() */
    MS_TICKET_FAILED    /* ms_offload_wait() returns the error */
} ms_ticket_state;

/*
 * Starts storing `bytes` from `source`. `capacity` (>= bytes) is the readable memory from
 * `source` on. If address and page-rounded size allow it, the transfer is direct, and
 * `source` must live, unchanged, until the ticket leaves MS_TICKET_STORING; otherwise the
 * bytes are copied before the call returns.
 */
MS_API int ms_offload_store(ms_offload *engine, const void *source, uint64_t bytes, uint64_t capacity,
                            ms_ticket *ticket, ms_error *err);

/* Starts fetching a stored extent into `destination`, of `capacity` writable bytes: those
 * after the extent's size may be overwritten. An extent can be fetched again after a fetch
 * ended, also after a failure. If the ticket is still STORING, its fetch follows the store.
 * After a failed fetch the contents of the destination are unspecified. */
MS_API int ms_offload_fetch(ms_offload *engine, ms_ticket ticket, void *destination, uint64_t capacity, ms_error *err);

/* The same for a GPU's memory (from_device). `stream` is the caller's stream, on which the
 * bytes were computed or the destination was last used; NULL is the legacy default
 * stream, which the calls above use. MS_EINVAL for engines of other memory. */
MS_API int ms_offload_store_on(ms_offload *engine, void *stream, const void *source, uint64_t bytes, ms_ticket *ticket,
                               ms_error *err);
MS_API int ms_offload_fetch_on(ms_offload *engine, void *stream, ms_ticket ticket, void *destination, uint64_t capacity,
                               ms_error *err);

/* Blocks until the ticket is neither STORING nor FETCHING; returns its error. A failed
 * store leaves the source unchanged: the caller still has the bytes. */
MS_API int ms_offload_wait(ms_offload *engine, ms_ticket ticket, ms_error *err);

/* As ms_offload_wait(), but returns as soon as a GPU's fetch is queued. Then only work that a stream runs after the
 * fetch may use the destination. */
MS_API int ms_offload_wait_queued(ms_offload *engine, ms_ticket ticket, ms_error *err);

/* As ms_offload_wait_queued(); also makes later work on `stream` run after the fetch. Before freeing the destination,
 * order the stream that uses its memory next. Waits for the device only if the driver refuses the order. */
MS_API int ms_offload_order(ms_offload *engine, void *stream, ms_ticket ticket, ms_error *err);

/* The ticket's state; never waits. MS_TICKET_FAILED for an unknown ticket. */
MS_API ms_ticket_state ms_offload_state(ms_offload *engine, ms_ticket ticket);

/* The tier that has the ticket's bytes, or will have them once they are stored. A GPU's
 * bytes may be on either tier. MS_TIER_COUNT for an unknown ticket. */
MS_API ms_tier ms_offload_tier_of(ms_offload *engine, ms_ticket ticket);

/* Cancels the ticket's transfer; never waits. Once its pieces in motion have ended, the
 * transfer fails with MS_ECANCELED. (ms_offload_reap() reports a cancelled store, which
 * must still be dropped; a cancelled fetch may be started again.) Does nothing to an idle
 * ticket: its transfer may just have ended. */
MS_API void ms_offload_cancel(ms_offload *engine, ms_ticket ticket);

/* Releases a ticket, also a failed one, and frees its extent. If a transfer is in flight,
 * waits for its pieces in motion, because they use the caller's memory, and cancels the
 * others. A thread that waits for the ticket gets MS_ECANCELED. The number is unknown
 * afterwards (MS_EINVAL). If pieces in motion don't end in time, an error is logged and the extent
 * stays until they end; that of a fetch queued on a device, until the engine is closed. It can't be
 * freed earlier, because a device may still read it. Its size is bounded by what the caller has in
 * flight. */
MS_API void ms_offload_drop(ms_offload *engine, ms_ticket ticket);

/* Tickets whose store has ended, with success or not, since the last call: at most `max`,
 * oldest first. Never blocks; costs one atomic load if there are none. */
MS_API size_t ms_offload_reap(ms_offload *engine, ms_ticket *tickets, size_t max);

/* Waits until no worker has anything to move. Copies to a device's memory may still be on their way
 * (ms_offload_wait()). */
MS_API int ms_offload_quiesce(ms_offload *engine, ms_error *err);

/* An engine's counters: bytes moved, bytes held. */
typedef struct ms_offload_stats {
    uint64_t stored_bytes, fetched_bytes;     /* cumulative, requested */
    uint64_t written_bytes, read_bytes;       /* cumulative, moved, padding included */
    uint64_t write_count, read_count;         /* cumulative, requests to the backend */
    uint64_t tier_bytes, peak_tier_bytes;     /* extents in use */
    uint64_t storing_bytes, fetching_bytes;   /* in flight now */
    uint64_t live_tickets;
    uint64_t slab_bytes;                      /* resident memory of the engine */
    uint64_t write_ns, read_ns;               /* busy time summed over workers */
    uint64_t compressed_bytes, compressed_into_bytes; /* cumulative, of stores */
} ms_offload_stats;

/* Fills `stats`. Thread-safe. */
MS_API void ms_offload_get_stats(ms_offload *engine, ms_offload_stats *stats);

/* Whether the engine was opened by the parent process, before a fork. Takes no lock. */
MS_API bool ms_offload_is_inherited(const ms_offload *engine);

/* One line about the backend: directory, direct I/O, cap. */
MS_API const char *ms_offload_description(const ms_offload *engine);

#ifdef __cplusplus
}
#endif

#endif
