/*
 * optimizer_stream.h - optimizer state that lives on disk and passes through memory
 * during a step: while one part is computed, the next ones are read and the last ones
 * written. The arithmetic is ms_adamw_step()'s, or the caller's, so parameters and state get
 * the same bits as with the state in memory.
 *
 * A state is cut into chunks of at most MS_OPTIMIZER_CHUNK_BYTES. A chunk and its stretch
 * of the parameter are updated together or not at all. Each chunk records the number of its
 * last update. After a failure:
 *
 *   - a chunk that cannot be read (or has another checksum) is unchanged, on disk and in
 *     the parameter;
 *   - a chunk that cannot be written has been updated; its bytes stay in memory, and the
 *     next ms_optimizer_stream_begin() writes them first;
 *   - later calls in the same round do nothing and return the failure.
 *
 * So a failed round can be repeated with the same step numbers and gradients: finished
 * chunks are skipped.
 *
 * Files have no name and are deleted with the process. Any thread may call; calls wait for
 * each other.
 *
 * fork(): the parent continues, also in the middle of an update. In the child the stream is
 * unusable (MS_ESTATE); closing it there frees the child's copies and never waits.
 *
 * Tests: tests/c/execute/test_optimizer_stream.c.
 */
#ifndef MEMSCALE_OPTIMIZER_STREAM_H
#define MEMSCALE_OPTIMIZER_STREAM_H

#include "memscale/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MS_OPTIMIZER_CHUNK_BYTES = 4 << 20,
    /* Chunks in memory at a time. At most half of them are read ahead; the others are being computed or written. */
    MS_OPTIMIZER_CHUNKS = 8,
    /* The most that ms_optimizer_stream_set_buffers() makes of them. */
    MS_OPTIMIZER_CHUNKS_MOST = 256,
    /* The state of smaller tensors is not worth a transfer: the caller keeps it. */
    MS_OPTIMIZER_STREAM_LEAST_ELEMENTS = 16384,
    /* State in host memory passes through this many buffers of a GPU, each of this size: one is filled, one is
     * computed with, one is written back. */
    MS_OPTIMIZER_HOST_BUFFERS = 3,
    MS_OPTIMIZER_HOST_BUFFER_BYTES = 16 << 20,
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

/* The place of the state. */
typedef struct ms_optimizer_stream_options {
    const char *dir;     /* of the spill file; NULL: the first usual place on a real disk */
    uint64_t cap_bytes;  /* 0: half of the free space there; UINT64_MAX: no cap */
    uint64_t timeout_ns; /* on one transfer; 0: 120 s */
} ms_optimizer_stream_options;

/* The types and size of a state. */
typedef struct ms_optimizer_form {
    ms_adamw_weights weights;
    ms_adamw_moments moments;
    bool has_max_exp_avg_sq;
    uint64_t count; /* elements, at least 1 */
} ms_optimizer_form;

/* An optimizer's state on disk. */
typedef struct ms_optimizer_stream ms_optimizer_stream;

/* Whether the state of a tensor of `elements` is worth streaming. */
MS_API bool ms_optimizer_stream_takes(uint64_t elements);

/* Chooses the states that leave the device if a plan moves at least `moved_bytes` (0: all) of them: moved[i] becomes 1,
 * else 0. No state could stay without the others having less. They are spread over the list, because updates in backward
 * hide transfers best if many layers have some. */
MS_API void ms_optimizer_choose_moved(const ms_optimizer_form *forms, size_t count, uint64_t moved_bytes,
                                      uint8_t *moved);

/* The elements of a state in host memory that share a buffer of the GPU, if a state has `arrays` arrays of
 * `item_bytes` an element (both at least 1): whole multiples of 512, so that arrays in a buffer are aligned. */
MS_API uint64_t ms_optimizer_host_elements(uint32_t arrays, uint32_t item_bytes);

/* MS_ECONFIG if the directory is unfit for a disk tier, or no fit one is found. */
MS_API int ms_optimizer_stream_open(const ms_optimizer_stream_options *options, ms_optimizer_stream **stream,
                                    ms_error *err);
MS_API void ms_optimizer_stream_close(ms_optimizer_stream *stream);

/* Adds a state before its first step: all zeros (with signed codes, the middle code). It takes
 * no space yet. *id is never 0 and is never reused. */
MS_API int ms_optimizer_stream_add(ms_optimizer_stream *stream, const ms_optimizer_form *form, uint64_t *id,
                                   ms_error *err);
MS_API void ms_optimizer_stream_remove(ms_optimizer_stream *stream, uint64_t id);

/* Whether the stream was opened by the parent process, before a fork. */
MS_API bool ms_optimizer_stream_is_inherited(const ms_optimizer_stream *stream);

/* Bytes of each array of the whole state; 0 for arrays that it lacks. */
MS_API int ms_optimizer_stream_part_bytes(ms_optimizer_stream *stream, uint64_t id, uint64_t bytes[MS_PART_COUNT],
                                          ms_error *err);

/* Sets the bytes of all chunks in memory, as far as MS_OPTIMIZER_CHUNKS and MS_OPTIMIZER_CHUNKS_MOST allow; 0 sets the
 * fewest. When an update returns, at most half of them are still being written and half are read ahead for the next
 * updates: the disk works while the caller computes gradients. Waits for the writes of chunks beyond the new number.
 * Does nothing in a child of the process that opened the stream. */
MS_API void ms_optimizer_stream_set_buffers(ms_optimizer_stream *stream, uint64_t bytes);

/*
 * A round is begin, one update for each tensor, end. `ids` is the expected order of updates,
 * for reading ahead. Another order only costs time.
 */
MS_API int ms_optimizer_stream_begin(ms_optimizer_stream *stream, const uint64_t *ids, size_t count, ms_error *err);

/*
 * Updates one tensor. Ignores the state's arrays in `tensor`. Checks weights, moments, count
 * and step: MS_EINVAL; MS_ESTATE if the state's last update is neither this one nor the one
 * before. Does not use parameter and gradient after it returns. MS_EIO, MS_ENOSPC,
 * MS_ECHECKSUM, MS_ETIMEDOUT as above; a later call of the round may return the error of a
 * failed write.
 */
MS_API int ms_optimizer_stream_update(ms_optimizer_stream *stream, uint64_t id, const ms_adamw_group *group,
                                      const ms_adamw_tensor *tensor, uint32_t threads, ms_error *err);

/*
 * Computes a stretch of a state: the arrays of part->count elements, from element `first` on. It has no parameter and no
 * gradient: the caller knows its own. Returns MS_OK, or a failure with a message; the stretch is then left on disk as it
 * was. It must not call the stream, whose lock is held.
 */
typedef int (*ms_optimizer_compute)(void *context, uint64_t first, const ms_adamw_tensor *part, ms_error *err);

/* As ms_optimizer_stream_update() for the update number `step`, with the caller's arithmetic: `compute` is called for each
 * stretch that does not have this update yet. */
MS_API int ms_optimizer_stream_update_by(ms_optimizer_stream *stream, uint64_t id, uint64_t step,
                                         ms_optimizer_compute compute, void *context, ms_error *err);

/* Waits for all writes, frees the buffers, and returns the first failure of the round.
 * Allowed without a round. */
MS_API int ms_optimizer_stream_end(ms_optimizer_stream *stream, ms_error *err);

/*
 * Replaces a state by `source`, a state in memory after `source->step` updates. Arrays that are
 * NULL there get their initial values. Not within a round (MS_ESTATE). After a failure the
 * state is a mixture: remove it.
 */
MS_API int ms_optimizer_stream_put(ms_optimizer_stream *stream, uint64_t id, const ms_adamw_tensor *source,
                                   ms_error *err);

/* Writes the arrays chunk by chunk into the file `fd`, each from its offset on (UINT64_MAX:
 * skip the array). MS_ESTATE within a round, or if only some chunks have the last update. */
MS_API int ms_optimizer_stream_export(ms_optimizer_stream *stream, uint64_t id, int fd,
                                      const uint64_t offsets[MS_PART_COUNT], ms_error *err);

/* Counters of a stream: bytes held, bytes moved. */
typedef struct ms_optimizer_stream_stats {
    uint64_t disk_bytes;      /* extents in use */
    uint64_t resident_bytes;  /* of the buffers */
    uint64_t peak_resident_bytes;
    uint64_t written_bytes, read_bytes; /* cumulative */
    uint64_t stall_ns;        /* cumulative time that updates waited for transfers */
} ms_optimizer_stream_stats;

/* Fills `stats`. */
MS_API void ms_optimizer_stream_get_stats(ms_optimizer_stream *stream, ms_optimizer_stream_stats *stats);

/* The file's directory, and one line about its I/O. They live as long as the stream. */
MS_API const char *ms_optimizer_stream_dir(const ms_optimizer_stream *stream);
MS_API const char *ms_optimizer_stream_description(const ms_optimizer_stream *stream);

#ifdef __cplusplus
}
#endif

#endif
