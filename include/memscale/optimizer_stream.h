/*
 * optimizer_stream.h - optimizer state that lives on disk and passes through memory
 * during a step: while one part is computed, the next ones are read and the last ones
 * written. The arithmetic is ms_adamw_step()'s, so parameters and state have the bits
 * of a state held in memory.
 *
 * A state is cut into chunks of at most MS_OPTIMIZER_CHUNK_BYTES. Each chunk is wholly
 * updated, its stretch of the parameter included, or not at all, and knows the number of
 * its last update. What a failure leaves behind:
 *
 *   - a chunk that can't be read (or was read with another checksum) has not been
 *     updated, neither on disk nor in the parameter;
 *   - a chunk that can't be written has been updated; its bytes stay in memory, and
 *     ms_optimizer_stream_begin() writes them first of all;
 *   - the calls after the failure in the same round do nothing and return it.
 *
 * So a round that failed can be gone through again with the same step numbers and
 * gradients: chunks that are done are passed over.
 *
 * Files have no name and are gone with the process. Any thread may call; calls wait for
 * each other.
 *
 * fork(): the parent goes on, in the middle of an update too. In the child the stream can't be
 * used (MS_ESTATE); closing it there gives back what the child inherited and waits for nothing.
 */
#ifndef MEMSCALE_OPTIMIZER_STREAM_H
#define MEMSCALE_OPTIMIZER_STREAM_H

#include "memscale/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MS_OPTIMIZER_CHUNK_BYTES = 4 << 20,
    /* Chunks in memory at a time: this many are read ahead, the others are being
     * computed or written. */
    MS_OPTIMIZER_CHUNKS = 8,
    MS_OPTIMIZER_CHUNKS_AHEAD = 4,
    /* Smaller tensors are not worth a transfer: their state stays with the caller. */
    MS_OPTIMIZER_STREAM_LEAST_ELEMENTS = 16384,
};

/* The arrays of a state, as in ms_adamw_tensor. */
typedef enum ms_optimizer_part {
    MS_PART_EXP_AVG,
    MS_PART_EXP_AVG_SQ,
    MS_PART_MAX_EXP_AVG_SQ,
    MS_PART_EXTRA,
    MS_PART_EXP_AVG_ABSMAX,
    MS_PART_EXP_AVG_SQ_ABSMAX,
    MS_PART_COUNT
} ms_optimizer_part;

/* Where the state goes. */
typedef struct ms_optimizer_stream_options {
    const char *dir;     /* of the spill file; NULL: the first usual place on a real disk */
    uint64_t cap_bytes;  /* 0: half of what is free there; UINT64_MAX: none */
    uint64_t timeout_ns; /* on one transfer; 0: 120 s */
} ms_optimizer_stream_options;

/* What a state consists of. */
typedef struct ms_optimizer_form {
    ms_adamw_weights weights;
    ms_adamw_moments moments;
    bool has_max_exp_avg_sq;
    uint64_t count; /* elements, at least 1 */
} ms_optimizer_form;

/* State of an optimizer on disk. */
typedef struct ms_optimizer_stream ms_optimizer_stream;

/* Whether the state of a tensor of `elements` is worth streaming. */
MS_API bool ms_optimizer_stream_takes(uint64_t elements);

/* MS_ECONFIG where the directory is not fit for a disk tier, or none is found. */
MS_API int ms_optimizer_stream_open(const ms_optimizer_stream_options *options, ms_optimizer_stream **stream,
                                    ms_error *err);
MS_API void ms_optimizer_stream_close(ms_optimizer_stream *stream);

/* The state before the first step, all zero (the middle code, with signed codes); takes
 * no space yet. *id is never 0 and is not used again. */
MS_API int ms_optimizer_stream_add(ms_optimizer_stream *stream, const ms_optimizer_form *form, uint64_t *id,
                                   ms_error *err);
MS_API void ms_optimizer_stream_remove(ms_optimizer_stream *stream, uint64_t id);

/* Whether this is a child's copy of a stream that the parent process opened. */
MS_API bool ms_optimizer_stream_is_inherited(const ms_optimizer_stream *stream);

/* Bytes of each array of the whole state; 0 for those it does not have. */
MS_API int ms_optimizer_stream_part_bytes(ms_optimizer_stream *stream, uint64_t id, uint64_t bytes[MS_PART_COUNT],
                                          ms_error *err);

/*
 * One round: begin, one update for each tensor, end. `ids` say in which order updates
 * are expected, so that reading can run ahead; another order costs time only.
 */
MS_API int ms_optimizer_stream_begin(ms_optimizer_stream *stream, const uint64_t *ids, size_t count, ms_error *err);

/*
 * Updates one tensor. Of `tensor`, the state's arrays are not looked at; weights,
 * moments, count and step are checked (MS_EINVAL, and MS_ESTATE where the state is of
 * neither the update before nor, being done, this one). Parameter and gradient are
 * not used any more when the call returns. MS_EIO, MS_ENOSPC, MS_ECHECKSUM, MS_ETIMEDOUT
 * as above; a failed write may be told of by a later call of the round.
 */
MS_API int ms_optimizer_stream_update(ms_optimizer_stream *stream, uint64_t id, const ms_adamw_group *group,
                                      const ms_adamw_tensor *tensor, uint32_t threads, ms_error *err);

/* Waits for what is being written, gives the buffers back, and returns the first failure
 * of the round. Allowed without a round. */
MS_API int ms_optimizer_stream_end(ms_optimizer_stream *stream, ms_error *err);

/*
 * Replaces a state by one in memory of `step` updates; arrays of `source` that are NULL
 * become as new. Not within a round (MS_ESTATE). On a failure the state is a mixture:
 * remove it.
 */
MS_API int ms_optimizer_stream_put(ms_optimizer_stream *stream, uint64_t id, const ms_adamw_tensor *source,
                                   ms_error *err);

/* Writes the arrays one chunk after the other into the file `fd`, each from the offset
 * given for it on (UINT64_MAX: not this one). Not within a round, nor while the state is
 * between two updates (MS_ESTATE). */
MS_API int ms_optimizer_stream_export(ms_optimizer_stream *stream, uint64_t id, int fd,
                                      const uint64_t offsets[MS_PART_COUNT], ms_error *err);

/* What a stream holds and has moved. */
typedef struct ms_optimizer_stream_stats {
    uint64_t disk_bytes;      /* extents in use */
    uint64_t resident_bytes;  /* of the buffers */
    uint64_t peak_resident_bytes;
    uint64_t written_bytes, read_bytes; /* cumulative */
    uint64_t stall_ns;        /* cumulative time that updates waited for transfers */
} ms_optimizer_stream_stats;

/* Fills `stats`. */
MS_API void ms_optimizer_stream_get_stats(ms_optimizer_stream *stream, ms_optimizer_stream_stats *stats);

/* The directory of the file, and one line on how it is used. They live as long as the
 * stream. */
MS_API const char *ms_optimizer_stream_dir(const ms_optimizer_stream *stream);
MS_API const char *ms_optimizer_stream_description(const ms_optimizer_stream *stream);

#ifdef __cplusplus
}
#endif

#endif
