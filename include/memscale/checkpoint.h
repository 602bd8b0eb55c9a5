/*
 * checkpoint.h - where the tensors of a safetensors file lie in it.
 *
 * A file is 8 bytes with the header's size, the header (JSON), and the tensors' bytes. Opening one reads and checks
 * the header and the file's size; it reads no tensor. Objects don't change, so threads may share them.
 *
 * Tests: tests/c/checkpoint/test_checkpoint.c, tests/fuzz/fuzz_checkpoint.c.
 */
#ifndef MEMSCALE_CHECKPOINT_H
#define MEMSCALE_CHECKPOINT_H

#include "memscale/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A tensor may have this many dimensions. */
#define MS_CHECKPOINT_RANK_MOST 16

/* A tensor of a file. Its texts live as long as the checkpoint. */
typedef struct ms_checkpoint_tensor {
    const char *name;
    const char *dtype; /* as in the file: "F32", "BF16" */
    uint64_t shape[MS_CHECKPOINT_RANK_MOST];
    size_t rank;
    uint64_t offset_bytes; /* from the file's beginning */
    uint64_t size_bytes;
} ms_checkpoint_tensor;

/* The checked header of a file. */
typedef struct ms_checkpoint ms_checkpoint;

/*
 * Opens the file at `path`. MS_EFORMAT, with the path in the text, if it is no safetensors file, is truncated or longer
 * than its header says, or if tensors overlap, leave gaps or have another size than their shape; MS_ENOTSUP for a type
 * of less than a byte and for more than MS_CHECKPOINT_RANK_MOST dimensions; MS_ESYSTEM, also for what is no regular
 * file; MS_ENOMEM.
 */
MS_API int ms_checkpoint_open(const char *path, ms_checkpoint **out, ms_error *err);

/* The same for the bytes of a file's beginning; `file_bytes` is the size of the whole. `name` begins error texts. */
MS_API int ms_checkpoint_parse(const char *name, const void *bytes, size_t length, uint64_t file_bytes,
                               ms_checkpoint **out, ms_error *err);

/* Frees a checkpoint. Accepts NULL. */
MS_API void ms_checkpoint_free(ms_checkpoint *checkpoint);

/* The number of tensors. */
MS_API size_t ms_checkpoint_count(const ms_checkpoint *checkpoint);
/* The size of the whole file. */
MS_API uint64_t ms_checkpoint_file_bytes(const ms_checkpoint *checkpoint);

/* Tensor `index`, in the order of their bytes; NULL beyond the last. */
MS_API const ms_checkpoint_tensor *ms_checkpoint_tensor_at(const ms_checkpoint *checkpoint, size_t index);

#ifdef __cplusplus
}
#endif

#endif
