/*
 * offload.h - moves bytes to a lower tier and back, asynchronously, verified.
 *
 * The executor stores the storage behind saved tensors and fetches it in
 * backward. Every transfer has a ticket. Worker threads move
 * the bytes; nothing here knows of tensors, plans or Python.
 *
 * Promises: a fetch either delivers the very bytes that were stored (XXH3 checked)
 * or fails; every completion is looked at; short transfers are resumed; memory is
 * bounded by the slab; no call waits for ever (`timeout_ns`); nothing is left on
 * disk, whatever ends the process. Progress never depends on the caller: any
 * transfer accepted finishes without another call being made.
 *
 * An engine is used from any number of threads. The calls that may block are
 * ms_offload_wait(), ms_offload_quiesce(), ms_offload_close(), ms_offload_drop() of a
 * ticket in flight, and ms_offload_store() of memory that is not direct (it is copied
 * into slots first, which may have to come free).
 *
 * Order: what somebody waits for, then fetches, then stores, each in the order of the
 * calls. A large transfer is moved in pieces of a slot's size by all workers, and
 * gives way between two pieces. Small ones that lie side by side on a disk and wait because
 * all workers are busy are moved by one request; each keeps its ticket, its checksum and its
 * own end. None is held back for others to come.
 *
 * GPUs. With `from_device`, what is stored and fetched lies in the memory of a GPU, and the
 * tier is host memory: pinned as far as `pinned_bytes` and the driver allow,
 * pageable beyond, and on disk, if there is a directory, where `cap_bytes` is reached. Each
 * transfer begins after what was queued, when it was asked for, on the stream that the
 * call names; it has ended when the host has seen its end, so that whatever is queued after
 * ms_offload_wait(), or after the state has changed, comes after it on every stream.
 *
 * exit(): every engine comes to rest (bounded) before the process's destructors run.
 * fork(): every engine comes to rest before it and goes on after it in the parent. In
 * the child it is unusable (MS_ESTATE); closing it there gives back what the child
 * inherited and touches nothing of the parent's.
 */
#ifndef MEMSCALE_OFFLOAD_H
#define MEMSCALE_OFFLOAD_H

#include "memscale/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where bytes may be, fastest first. */
typedef enum ms_tier { MS_TIER_DEVICE, MS_TIER_HOST, MS_TIER_DISK, MS_TIER_COUNT } ms_tier;
/* "device", "host" or "disk"; "unknown" for any other number. */
MS_API const char *ms_tier_name(ms_tier tier);

/* Whether bytes are compressed, losslessly, on their way to the tier. */
typedef enum ms_compression {
    MS_COMPRESSION_AUTO,  /* on the disk tier, each piece where its measured ratio, the measured cost
                             of the codec and the link's rates make it a win; never where the rates
                             are not known. MEMSCALE_DISK_COMPRESSION=always|never in the
                             environment decides instead */
    MS_COMPRESSION_NEVER,
    MS_COMPRESSION_ALWAYS /* whatever gets smaller, from host memory to any tier */
} ms_compression;

/* How to open an engine. */
typedef struct ms_offload_options {
    ms_tier tier;              /* MS_TIER_HOST: the memory backend; MS_TIER_DISK: a file */
    const char *dir;           /* of the spill file, made where it is missing; ignored for the host tier */
    uint64_t cap_bytes;        /* stores beyond it fail with MS_ENOSPC; UINT64_MAX: none */
    uint64_t slab_bytes;       /* for small and unaligned storages; 0: 32 MiB */
    uint64_t slot_bytes;       /* 0: 4 MiB */
    uint32_t worker_count;     /* threads, each with a piece under way; 0: 3, so that two move
                                  while one is hashed */
    uint64_t timeout_ns;       /* on one wait; 0: 120 s */
    ms_compression compression; /* moves faster and takes no less room: extents keep their
                                   size on the tier. Nothing of a GPU's memory */
    uint64_t write_bytes_per_s, read_bytes_per_s; /* of the link, measured; 0: not known */
    bool no_direct_io;         /* buffered I/O although direct is possible */
    bool no_verify;            /* no checksums: for measuring what they cost */

    /* Of a GPU. `dir` is then optional with MS_TIER_HOST: where what `cap_bytes` does not
     * allow goes. MS_TIER_DISK: everything goes there. */
    bool from_device;
    ms_device_kind device_kind; /* of the GPU; 0: MS_DEVICE_UNSTATED */
    uint32_t device;           /* its ordinal, as the driver counts */
    uint64_t pinned_bytes;     /* most host memory to pin; 0: up to cap_bytes, at most
                                  half of what is available */
    uint64_t disk_cap_bytes;   /* of the spill file; 0: none */
    uint32_t stream_count;     /* of our own; 0: one for each direction, or one where the
                                  GPU has one copy engine */
} ms_offload_options;

/* The engine, and one storage's place on its tier. */
typedef struct ms_offload ms_offload;
typedef uint64_t ms_ticket; /* 0 is none */

/* Opens an engine and starts its workers. */
MS_API int ms_offload_open(const ms_offload_options *options, ms_offload **engine, ms_error *err);
/* Cancels what is queued, waits (bounded) for the pieces that are being moved, stops
 * the workers, gives back the file, the slab and every extent. Tickets are void
 * afterwards. Calls of other threads that are waiting return MS_ECANCELED first; no
 * other call may be under way. */
MS_API void ms_offload_close(ms_offload *engine);

/* How far a transfer is. */
typedef enum ms_ticket_state {
    MS_TICKET_STORING,  /* the source is still being read: keep it alive and unchanged */
    MS_TICKET_STORED,   /* the tier has it */
    MS_TICKET_FETCHING, /* the destination is being written */
    MS_TICKET_FETCHED,  /* the destination holds the bytes; the tier still has them too */
    MS_TICKET_FAILED    /* ms_offload_wait() tells how */
} ms_ticket_state;

/*
 * Starts storing `bytes` from `source`. `capacity` says up to where memory behind
 * `source` may be read (>= bytes): where address and the page-rounded size allow it,
 * the transfer is direct and `source` must live, unchanged, until the ticket leaves
 * MS_TICKET_STORING; otherwise the bytes are copied before the call returns.
 */
MS_API int ms_offload_store(ms_offload *engine, const void *source, uint64_t bytes, uint64_t capacity,
                            ms_ticket *ticket, ms_error *err);

/* Starts bringing a stored extent to `destination` (capacity as above: bytes between
 * the extent's size and the capacity may be overwritten). May be called again after it
 * finished, well or not. A ticket still STORING is fetched after its store. Where a fetch
 * fails, what is in the destination is not said. */
MS_API int ms_offload_fetch(ms_offload *engine, ms_ticket ticket, void *destination, uint64_t capacity, ms_error *err);

/* The same for a GPU's memory (from_device): `stream` is the caller's stream, on which
 * the bytes were made, or the destination was used before; NULL is the legacy default
 * stream, which the calls above mean. MS_EINVAL for engines of other memory. */
MS_API int ms_offload_store_on(ms_offload *engine, void *stream, const void *source, uint64_t bytes, ms_ticket *ticket,
                               ms_error *err);
MS_API int ms_offload_fetch_on(ms_offload *engine, void *stream, ms_ticket ticket, void *destination, uint64_t capacity,
                               ms_error *err);

/* Blocks until the ticket is neither STORING nor FETCHING; returns its error. A
 * failed store leaves the source as it was: the caller still has the bytes. */
MS_API int ms_offload_wait(ms_offload *engine, ms_ticket ticket, ms_error *err);

/* How far the ticket's transfer is, without waiting. MS_TICKET_FAILED for a ticket that does not exist. */
MS_API ms_ticket_state ms_offload_state(ms_offload *engine, ms_ticket ticket);

/* Where the ticket's bytes are, or will be once they are stored: a GPU's may be on either
 * tier. MS_TIER_COUNT for a ticket that does not exist. */
MS_API ms_tier ms_offload_tier_of(ms_offload *engine, ms_ticket ticket);

/* Starts no further piece of what is in flight of the ticket; never waits. The transfer
 * ends, once the pieces that are being moved have, as failed with MS_ECANCELED (a store is
 * told of by ms_offload_reap(), and still to be dropped; a fetch may be asked for again).
 * Does nothing to a ticket at rest: it may have ended just before. */
MS_API void ms_offload_cancel(ms_offload *engine, ms_ticket ticket);

/* Gives up a ticket, also one that failed: its extent is free for reuse. Of a transfer
 * in flight the pieces that are being moved are waited for first (their memory belongs
 * to somebody), the others are not moved any more. A thread that waits for the ticket
 * gets MS_ECANCELED; the number is unknown from then on (MS_EINVAL). */
MS_API void ms_offload_drop(ms_offload *engine, ms_ticket ticket);

/* Tickets whose store has ended, well or not, since they were last returned here:
 * at most `max`, oldest first. Never blocks; costs one atomic load when there are none. */
MS_API size_t ms_offload_reap(ms_offload *engine, ms_ticket *tickets, size_t max);

/* Waits until nothing is in flight (before fork and at the end of a step). */
MS_API int ms_offload_quiesce(ms_offload *engine, ms_error *err);

/* What an engine has moved, and what it holds. */
typedef struct ms_offload_stats {
    uint64_t stored_bytes, fetched_bytes;     /* cumulative, asked for */
    uint64_t written_bytes, read_bytes;       /* cumulative, moved, padding included */
    uint64_t write_count, read_count;         /* cumulative, requests that were to move them */
    uint64_t tier_bytes, peak_tier_bytes;     /* extents in use */
    uint64_t storing_bytes, fetching_bytes;   /* in flight now */
    uint64_t live_tickets;
    uint64_t slab_bytes;                      /* resident memory of the engine */
    uint64_t write_ns, read_ns;               /* busy time summed over workers */
    uint64_t compressed_bytes, compressed_into_bytes; /* cumulative, of what was stored */
} ms_offload_stats;

/* Fills `stats`. Thread-safe. */
MS_API void ms_offload_get_stats(ms_offload *engine, ms_offload_stats *stats);

/* Whether this is a child's copy of an engine that the parent process opened. Takes no lock. */
MS_API bool ms_offload_is_inherited(const ms_offload *engine);

/* One line on what moves the bytes and how: directory, direct I/O, cap. */
MS_API const char *ms_offload_description(const ms_offload *engine);

#ifdef __cplusplus
}
#endif

#endif
