/*
 * hardware.h - the machine as a value: its parts, its limits and its rates.
 *
 * A description is probed once. Its measured rates are rounded to two significant digits and cached per machine, so
 * that a plan is a pure function of three documents: graph, hardware, config. Everything here prints as JSON and can
 * be loaded again, also on another machine.
 * Tests: tests/c/hardware/test_hardware.c.
 */
#ifndef MEMSCALE_HARDWARE_H
#define MEMSCALE_HARDWARE_H

#include "memscale/config.h"
#include "memscale/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Instruction sets that have kernels; a bit each. */
#define MS_ISA_TABLE(X) \
    X(AVX2, 0, "avx2") \
    X(AVX512F, 1, "avx512f") \
    X(AVX512_BF16, 2, "avx512_bf16") \
    X(AVX512_VNNI, 3, "avx512_vnni") \
    X(AMX_BF16, 4, "amx_bf16") \
    X(NEON, 5, "neon")
enum {
#define MS_ISA_ENUM(id, bit, name) MS_ISA_##id = 1u << (bit),
    MS_ISA_TABLE(MS_ISA_ENUM)
#undef MS_ISA_ENUM
};

/* The processor as training may use it. */
typedef struct ms_cpu {
    char name[MS_NAME_MAX];
    uint32_t usable_cpus;          /* by affinity and cgroup quota */
    uint32_t isa;                  /* MS_ISA_... bits */
    uint64_t matmul_flops_per_s;   /* fp32, all usable CPUs */
    uint64_t stream_bytes_per_s;   /* element-wise work: bytes read + written */
    uint64_t fault_bytes_per_s;    /* first touch of fresh huge pages, one thread */
    uint64_t checksum_bytes_per_s; /* XXH3, one thread */
    uint64_t evaluations_per_s;    /* elementary functions, all usable CPUs; 0: unknown, estimated in proportion
                                      to matmul_flops_per_s */
    uint64_t pack_bytes_per_s;     /* bit packing of a two-valued tensor, one thread */
    uint64_t unpack_bytes_per_s;   /* bit unpacking, one thread. 0: both unknown, estimated in proportion to
                                      stream_bytes_per_s */
} ms_cpu;

/* Host memory and its limits. */
typedef struct ms_ram {
    uint64_t total_bytes;
    uint64_t available_bytes;
    uint64_t limit_bytes;    /* the tightest cgroup limit; UINT64_MAX: none */
    uint64_t memlock_bytes;  /* UINT64_MAX: unlimited */
    char limit_source[MS_PATH_MAX]; /* the cgroup file that sets it, "" for none */
} ms_ram;

/* The directory of the disk tier and how fast it is. */
typedef struct ms_disk {
    char dir[MS_PATH_MAX];    /* "": no usable directory, the disk tier is off */
    char filesystem[MS_NAME_MAX];
    bool is_memory;           /* tmpfs, ramfs: writing there frees no memory */
    bool direct_io;
    uint64_t free_bytes;
    uint64_t write_bytes_per_s;
    uint64_t read_bytes_per_s;
    char refusal[MS_NAME_MAX]; /* why `dir` can't be used; "" if it can */
} ms_disk;

/* Memory of the training process itself, measured by wrap(). Zero in a plan made without a process (the command
 * line). */
typedef struct ms_process {
    uint64_t baseline_bytes; /* resident (CPU) or allocated (GPU) before the first step */
    uint64_t scratch_bytes;  /* memory of operators and the interpreter beside tensors, at most */
    uint64_t reserve_bytes;  /* the part of scratch_bytes that is not expected: budgets leave it free */
    uint64_t products_bytes; /* the expected part that only large matrix products take; 0 once measured */
} ms_process;

/* The machine. */
typedef struct ms_hardware {
    ms_cpu cpu;
    ms_ram ram;
    ms_disk disk;
    ms_process process;
    uint32_t gpu_count;
    ms_gpu gpu[MS_GPU_MAX];
    int32_t device;             /* the training device: -1 the CPU, else an index into gpu[] */
    uint64_t time_scale_permille; /* measured step time / predicted; 1000 until a step is measured */
} ms_hardware;

/* Options of the probe. */
typedef struct ms_hardware_options {
    const char *disk_dir;  /* NULL: choose a cache directory on a real disk */
    const char *cache_dir; /* directory of cached rates; NULL: the user's cache directory */
    bool no_cache;         /* measure again */
    bool no_measure;       /* use stated default rates; nothing is written */
} ms_hardware_options;

/*
 * Probes this machine. An absent part (no GPU, no usable disk) is not a failure: the description says so. The first
 * measurement takes a second or two and writes a temporary file of 256 MB in the disk directory, deleted at once.
 * Tests: tests/c/hardware/test_probe.c.
 */
MS_API int ms_hardware_probe(const ms_hardware_options *options, ms_hardware *hardware, ms_error *err);

/* Checks that `dir` can hold the disk tier. Fills the ms_disk except for its rates. MS_ECONFIG if the directory is
 * on a memory file system, is not writable, or does not exist and can't be made. */
MS_API int ms_disk_probe(const char *dir, ms_disk *disk, ms_error *err);

/* Reads and writes the description of a machine as JSON (docs/formats/hardware.schema.json). */
MS_API int ms_hardware_parse(const char *json, ms_hardware *hardware, ms_error *err);
MS_API char *ms_hardware_to_json(const ms_hardware *hardware);

/* The kind of the training device: MS_DEVICE_CPU, or that of its GPU. */
MS_API ms_device_kind ms_hardware_device_kind(const ms_hardware *hardware);

/* True if training runs in host memory. */
MS_API bool ms_hardware_host_is_device(const ms_hardware *hardware);

/* The GPU that training runs on; NULL for the CPU and for a GPU without a description. */
MS_API const ms_gpu *ms_hardware_gpu(const ms_hardware *hardware);

/* The memory of the training device: a GPU's total, on a CPU host the smaller of RAM and the
 * binding limit. Without a budget, plans aim at a share of it. */
MS_API uint64_t ms_hardware_device_bytes(const ms_hardware *hardware);

/*
 * Fills `process` and `device` for the calling process. For the CPU (device -1) the baseline is the current resident
 * memory after libc released its free memory. If it differs from the previous baseline by at most 20 MB, the previous
 * one stays, so that plans of one process agree. For a GPU the baseline is `allocated_bytes`, the framework's
 * allocations there. Scratch and reserve are priors that the first steps replace (ms_pipeline_observe()).
 * Thread-safe.
 */
MS_API int ms_hardware_set_process(ms_hardware *hardware, int32_t device, uint64_t allocated_bytes, ms_error *err);

/*
 * Measures the baseline of a CPU host again, after the process has loaded more: the resident memory without the
 * `tensor_bytes` that hostmem holds, with `expected_bytes` that will be allocated or touched and 8 MB for what a
 * trainer loads later. Never lowers it. Does nothing for a GPU. Thread-safe.
 */
MS_API int ms_hardware_grow_process(ms_hardware *hardware, uint64_t tensor_bytes, uint64_t expected_bytes,
                                    ms_error *err);

/* The framework's description of a GPU. */
typedef struct ms_gpu_sight {
    ms_device_kind kind;
    const char *name;
    uint64_t total_bytes;
    uint64_t available_bytes; /* free, or reserved by this process's allocator */
} ms_gpu_sight;

/* Notes the memory of GPU `device` that this process can use. If the driver described none of that number (it was not
 * found, or is not CUDA's own), adds it with stated default rates and no copy engine: nothing moves from it. MS_EINVAL:
 * the number is MS_GPU_MAX or more. */
MS_API int ms_hardware_see_gpu(ms_hardware *hardware, uint32_t device, const ms_gpu_sight *sight, ms_error *err);

/* Names of the catalogue's cards, in a fixed order; NULL after the last one. */
MS_API const char *ms_hardware_card_name(size_t i);

/*
 * Describes training on one card of the catalogue in this host, in the place of its own GPUs: memory as frameworks see
 * it, four fifths of the datasheet's peaks, a process that holds nothing yet. Names are compared without case and
 * punctuation. MS_ENOTSUP for an unknown name; the error lists the known ones, and nothing has changed.
 */
MS_API int ms_hardware_use_card(ms_hardware *hardware, const char *name, ms_error *err);

/* Two significant digits, so that a noisy measurement gives a stable plan. */
MS_API uint64_t ms_round_2_digits(uint64_t value);

#ifdef __cplusplus
}
#endif

#endif
