/*
 * hardware.h - the machine as a value: its parts, its limits and its rates.
 *
 * A machine is probed once. Its measured rates are rounded to two significant digits and cached, so that a plan is a
 * pure function of three documents: graph, hardware, config. A description can be written as JSON and loaded again,
 * also on another machine.
 * Tests: tests/c/hardware/test_hardware.c.
 */
#ifndef MEMSCALE_HARDWARE_H
#define MEMSCALE_HARDWARE_H

#include "memscale/config.h"
#include "memscale/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Instruction sets that have kernels; each is one bit. */
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

/* The part of the processor that training may use. */
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
    char limit_source[MS_PATH_MAX]; /* the cgroup file that sets limit_bytes; "": none */
} ms_ram;

/* The directory of the disk tier, and its speed. */
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

/* Memory of the training process itself, measured by wrap(). All 0 if there is no process (the command line). */
typedef struct ms_process {
    uint64_t baseline_bytes; /* resident (CPU) or allocated (GPU) before the first step */
    uint64_t scratch_bytes;  /* most memory of operators and the interpreter beside tensors */
    uint64_t reserve_bytes;  /* the possible but unexpected part of scratch_bytes: budgets leave room for it */
    uint64_t products_bytes; /* the expected part that only large matrix products take; 0 once measured */
    uint64_t convolutions_bytes; /* more reserve, beside scratch_bytes, for a step with convolutions; 0 once measured */
    uint64_t storages_bytes; /* once measured: what the measured step's storages were assumed to add to scratch_bytes;
                              * a step with more of them takes more. 0: unknown */
    uint64_t state_bytes; /* the part of the baseline that is state of the model's optimizers */
    uint64_t traced_bytes; /* the part of scratch_bytes that the first trace left resident; the baseline includes it */
    uint64_t streamed_bytes; /* of parameters that stream */
    uint64_t window_bytes; /* the part of the baseline that these may take; see ms_pipeline_window() */
    uint64_t window_reserve_bytes; /* more for them, beside the baseline: possible but unexpected. Budgets leave room */
    uint64_t window_backward_ns; /* the disk's time for them in a step's backward */
} ms_process;

/* The machine. */
typedef struct ms_hardware {
    ms_cpu cpu;
    ms_ram ram;
    ms_disk disk;
    ms_process process;
    uint32_t gpu_count;
    ms_gpu gpu[MS_GPU_MAX];
    int32_t device; /* the training device: -1 the CPU, else an index into gpu[] */
    uint64_t time_scale_permille; /* measured step time / predicted; 1000 until a step is measured */
    uint64_t pace_permille; /* measured step time / predicted by a plan that stays as it is, because everything is
                                 * slower (a busy machine) or faster; 0: as predicted so far. Changes no plan */
} ms_hardware;

/* A predicted time at this machine's pace. */
MS_API uint64_t ms_hardware_at_pace(const ms_hardware *hardware, uint64_t predicted_ns);

/* Options of the probe. */
typedef struct ms_hardware_options {
    const char *disk_dir; /* NULL: choose a cache directory on a real disk */
    const char *cache_dir; /* directory of cached rates; NULL: the user's cache directory */
    bool no_cache; /* measure again */
    bool no_measure; /* use stated default rates; nothing is written */
    bool no_gpus; /* ask no driver: children of a process that has asked one can't use it */
} ms_hardware_options;

/*
 * Probes this machine. Succeeds also if a part is absent (no GPU, no usable disk); the description reports it. The
 * first measurement takes a second or two; it writes a file of 256 MB in the disk directory and deletes it at once.
 * Tests: tests/c/hardware/test_probe.c.
 */
MS_API int ms_hardware_probe(const ms_hardware_options *options, ms_hardware *hardware, ms_error *err);

/* Checks that `dir` can hold the disk tier, and fills `disk` except for its rates. MS_ECONFIG if the directory is on
 * a memory file system, is not writable, or does not exist and can't be made. */
MS_API int ms_disk_probe(const char *dir, ms_disk *disk, ms_error *err);

/* Reads and writes the description of a machine as JSON (docs/formats/hardware.schema.json). */
MS_API int ms_hardware_parse(const char *json, ms_hardware *hardware, ms_error *err);
MS_API char *ms_hardware_to_json(const ms_hardware *hardware);

/* The kind of the training device: MS_DEVICE_CPU, or the GPU's kind. */
MS_API ms_device_kind ms_hardware_device_kind(const ms_hardware *hardware);

/* True if training runs in host memory. */
MS_API bool ms_hardware_host_is_device(const ms_hardware *hardware);

/* The GPU that training runs on; NULL for the CPU and for a GPU without a description. */
MS_API const ms_gpu *ms_hardware_gpu(const ms_hardware *hardware);

/* The memory of the training device: a GPU's total, or on a CPU host the smaller of RAM and the
 * cgroup limit. Without a budget, plans aim at a share of it. */
MS_API uint64_t ms_hardware_device_bytes(const ms_hardware *hardware);

/*
 * Fills `process` and `device` for the calling process. For the CPU (device -1) the baseline is the current resident
 * memory after libc released its free memory. The previous baseline stays if it differs by at most 20 MB, so that
 * plans of one process agree. For a GPU the baseline is `allocated_bytes`, the framework's allocations there. Scratch
 * and reserve are estimates until the first steps replace them (ms_pipeline_observe()). Thread-safe.
 */
MS_API int ms_hardware_set_process(ms_hardware *hardware, int32_t device, uint64_t allocated_bytes, ms_error *err);

/*
 * Measures the baseline of a CPU host again, after the process has loaded more code: the resident memory, minus
 * `tensor_bytes` (held by hostmem), plus `expected_bytes` (to be allocated or touched later), plus 8 MB for code that
 * a trainer loads later. On a GPU, `tensor_bytes` are allocated now, and the baseline grows by at most `expected_bytes`
 * of them: what was made since, such as DDP's buckets. Never lowers the baseline. Thread-safe.
 */
MS_API int ms_hardware_grow_process(ms_hardware *hardware, uint64_t tensor_bytes, uint64_t expected_bytes,
                                    ms_error *err);

/*
 * At the first forward after a wrap, on a CPU host: its baseline becomes the present resident memory, minus `tensor_bytes`
 * (held by hostmem) and plus `counted_bytes` (those of them that the baseline counts), if that is less: what the wrapped
 * model replaces is gone. Thread-safe.
 */
MS_API int ms_hardware_begins(ms_hardware *hardware, uint64_t tensor_bytes, uint64_t counted_bytes, ms_error *err);

/*
 * After the first trace, on a CPU host: its baseline becomes the present resident memory, minus `tensor_bytes` (held by
 * hostmem), if that is more. What Python and torch loaded for the model's code is then measured, and the first step is
 * assumed to take that much less. Does nothing once a step was measured. Thread-safe.
 */
MS_API int ms_hardware_traced(ms_hardware *hardware, uint64_t tensor_bytes, ms_error *err);

/* The resident memory of this process beside `tensor_bytes` (held by hostmem), after libc released its free memory.
 * Thread-safe. */
MS_API int ms_process_beside_tensors(uint64_t tensor_bytes, uint64_t *bytes, ms_error *err);
/* Adds to the baseline of a CPU host what its memory beside tensors has grown by: code that was compiled. On a GPU,
 * where the host's memory is not planned, does nothing. */
MS_API void ms_hardware_grow_by(ms_hardware *hardware, uint64_t before_bytes, uint64_t after_bytes);

/* Takes `bytes` that it counts no longer from the baseline of a CPU host. */
MS_API void ms_hardware_shrink_by(ms_hardware *hardware, uint64_t bytes);

/* The framework's description of a GPU. */
typedef struct ms_gpu_sight {
    ms_device_kind kind;
    const char *name;
    uint64_t total_bytes;
    uint64_t available_bytes; /* free, or reserved by this process's allocator */
} ms_gpu_sight;

/* Notes the memory of GPU `device` that this process can use. If the driver did not describe that GPU (it was not
 * found, or is not CUDA's own), adds it with stated default rates and without copy engines: nothing moves from it.
 * MS_EINVAL if `device` is MS_GPU_MAX or more; MS_ENOTSUP if the driver's GPU of that number has other memory: it is
 * another device, such as the card of a MIG slice. */
MS_API int ms_hardware_see_gpu(ms_hardware *hardware, uint32_t device, const ms_gpu_sight *sight, ms_error *err);

/*
 * The rates of a GPU, measured by the framework: C says what to run, the framework runs it on the GPU and times it
 * with the device's events. Tries grow until one takes long enough to be timed well, or until they are as large as the
 * memory allows.
 */
typedef struct ms_gpu_trial {
    const char *rate; /* the member of ms_gpu that it measures */
    const char *work; /* "product": of two square matrices; "scale": x *= 1, "to_host" and "from_host": a copy */
    const char *dtype; /* torch's name */
    bool is_pinned; /* the host memory of a copy */
} ms_gpu_trial;

/* One run of a trial. */
typedef struct ms_gpu_try {
    uint64_t size; /* a product's rows, else bytes */
    uint32_t repeats; /* that many times, one after the other */
    uint64_t ns; /* of all of them, from the device's events; the framework sets it */
} ms_gpu_try;

/* Trial i; NULL after the last one. */
MS_API const ms_gpu_trial *ms_gpu_trial_at(size_t i);

/* The next try of trial `i` after `next`, which is all 0 at first; it may use `room_bytes` on the GPU. False if `next`
 * was the last one: `*rate` is then the trial's result, 0 if nothing was timed. */
MS_API bool ms_gpu_trial_next(size_t i, uint64_t room_bytes, ms_gpu_try *next, uint64_t *rate);

/* Sets the rates of GPU `device` from the user's cache. `key` is a line that identifies device, driver and settings.
 * False if the cache has none. `cache_dir` as in ms_hardware_options. */
MS_API bool ms_hardware_load_gpu_rates(ms_hardware *hardware, uint32_t device, const char *cache_dir, const char *key);

/* Sets measured rates, one for each trial in order, rounded to two digits. Rates of 0 stay as they are. If none is 0,
 * the cache keeps them. */
MS_API void ms_hardware_set_gpu_rates(ms_hardware *hardware, uint32_t device, const char *cache_dir, const char *key,
                                      const uint64_t *rates);

/* Bytes that the training device can send to another one of its host: four fifths of its links' rate, if the catalogue
 * has the card, else the rate of its copies to and from the host; 0 for a CPU. */
MS_API uint64_t ms_hardware_peer_bytes_per_s(const ms_hardware *hardware);

/* Names of the catalogue's cards, in a fixed order; NULL after the last one. */
MS_API const char *ms_hardware_card_name(size_t i);

/*
 * Replaces the GPUs of the description by one card of the catalogue, as the training device: with the memory that
 * frameworks see, four fifths of the datasheet's peak rates, and a process that holds nothing yet. Names match without
 * case and punctuation. MS_ENOTSUP for an unknown name; the error lists the known ones, and nothing changes.
 */
MS_API int ms_hardware_use_card(ms_hardware *hardware, const char *name, ms_error *err);

/* Rounds to two significant digits, so that a noisy measurement gives a stable plan. */
MS_API uint64_t ms_round_2_digits(uint64_t value);

#ifdef __cplusplus
}
#endif

#endif
