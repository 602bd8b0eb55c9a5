/*
 * device.h - the kinds of device that training runs on, and the description of a GPU.
 *
 * Kinds have torch's names ("cpu", "cuda"). Other kinds are refused, by name, because memscale has no figures
 * for them.
 *
 * Tests: tests/c/device/test_device_kinds.c.
 */
#ifndef MEMSCALE_DEVICE_H
#define MEMSCALE_DEVICE_H

#include "memscale/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A kind of device. */
typedef enum ms_device_kind {
    MS_DEVICE_CUDA,
    MS_DEVICE_CPU,
    MS_DEVICE_KIND_COUNT,
    MS_DEVICE_UNSTATED = MS_DEVICE_CUDA /* 0: a GPU whose kind is not given */
} ms_device_kind;

/* "cuda"; "unknown" for an unknown number. */
MS_API const char *ms_device_kind_name(ms_device_kind kind);

/* The kind with this name. MS_ENOTSUP for an unknown name; the error lists the known ones. */
MS_API int ms_device_kind_named(const char *name, ms_device_kind *kind, ms_error *err);

/* Whether tensors of this kind are in host memory; true for an unknown number. */
MS_API bool ms_device_host_is_device(ms_device_kind kind);

enum { MS_NAME_MAX = 256, MS_GPU_MAX = 16 };

/* One GPU and its link to the host. */
typedef struct ms_gpu {
    ms_device_kind kind; /* never MS_DEVICE_CPU */
    char name[MS_NAME_MAX];
    uint64_t total_bytes;
    uint64_t free_bytes;
    uint32_t copy_engines; /* 0: nothing can be moved from it */
    uint32_t compute_major, compute_minor;
    uint64_t matmul_flops_per_s; /* products of all but 16-bit numbers; TF32's if the process allows it */
    uint64_t bf16_flops_per_s;   /* 0: as matmul_flops_per_s */
    uint64_t fp16_flops_per_s;   /* 0: as matmul_flops_per_s */
    uint64_t stream_bytes_per_s;
    uint64_t to_host_bytes_per_s; /* pinned host memory */
    uint64_t from_host_bytes_per_s;
    uint64_t pageable_to_host_bytes_per_s; /* 0: unknown */
    uint64_t pageable_from_host_bytes_per_s;
} ms_gpu;

#ifdef __cplusplus
}
#endif

#endif
