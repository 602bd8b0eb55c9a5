/*
 * Builds the hardware description from the probes (probe_*.c) and the rates (rates*.c), which are measured once and
 * kept in the user's cache. Called before planning and by `memscale hardware`.
 */
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/checksum.h"
#include "base/os/file.h"
#include "base/units.h"
#include "device/device.h"
#include "hardware/isa.h"
#include "hardware/probe.h"
#include "hardware/rates.h"
#include "memscale/hardware.h"

enum { MEASURE_BYTES = 256 << 20, DIR_SHARE = 4, MEMORY_SHARE = 8, TIME_SCALE_NEUTRAL = 1000 };
#define DISK_LIMIT_NS UINT64_C(800000000)

/* Unoptimized and instrumented builds have their own cached rates. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define BUILD_FLAVOUR "instrumented"
#elif defined(__OPTIMIZE__)
#define BUILD_FLAVOUR "optimized"
#else
#define BUILD_FLAVOUR "unoptimized"
#endif

uint64_t ms_round_2_digits(uint64_t value)
{
    uint64_t unit = 1;
    while (value / unit >= 100) {
        unit *= 10;
    }
    uint64_t rounded = value / unit;
    uint64_t rest = value % unit;
    if (unit > 1 && rest >= unit / 2) {
        rounded++;
    }
    return ms__mul_sat(rounded, unit);
}

const ms_gpu *ms_hardware_gpu(const ms_hardware *hardware)
{
    bool is_described =
        hardware->device >= 0 && (uint32_t)hardware->device < hardware->gpu_count && hardware->device < MS_GPU_MAX;
    return is_described ? &hardware->gpu[hardware->device] : NULL;
}

ms_device_kind ms_hardware_device_kind(const ms_hardware *hardware)
{
    const ms_gpu *gpu = ms_hardware_gpu(hardware);
    ms_device_kind kind = gpu != NULL ? gpu->kind : MS_DEVICE_UNSTATED;
    return hardware->device < 0 ? MS_DEVICE_CPU : kind;
}

bool ms_hardware_host_is_device(const ms_hardware *hardware)
{
    return ms_device_host_is_device(ms_hardware_device_kind(hardware));
}

uint64_t ms_hardware_device_bytes(const ms_hardware *hardware)
{
    const ms_gpu *gpu = ms_hardware_gpu(hardware);
    return gpu != NULL ? gpu->total_bytes : ms__min_u64(hardware->ram.total_bytes, hardware->ram.limit_bytes);
}

/* ---- keys of cached measurements ---------------------------------------- */

typedef struct key_text {
    char text[1024];
} key_text;

static key_text machine_key(void)
{
    key_text key;
    char machine[64] = "";
    struct utsname system = {0};
    if (!ms__file_read_small("/etc/machine-id", machine, sizeof machine)) {
        ms__file_read_small("/var/lib/dbus/machine-id", machine, sizeof machine);
    }
    size_t length = strcspn(machine, "\n");
    uname(&system);
    /* machine-id(5) says that the number is confidential; its hash tells machines apart as well. */
    snprintf(key.text, sizeof key.text, "machine %016llx kernel %s build %s %s",
             (unsigned long long)ms__checksum_plain(machine, length), system.release, ms_version(), BUILD_FLAVOUR);
    return key;
}

static key_text cpu_key(const ms_cpu *cpu)
{
    key_text machine = machine_key();
    key_text key;
    snprintf(key.text, sizeof key.text, "%.600s cpus %u isa %x products %x name %s", machine.text,
             (unsigned)cpu->usable_cpus, (unsigned)cpu->isa, (unsigned)ms__isa_of_products(cpu->isa), cpu->name);
    return key;
}

static key_text disk_key(const ms_disk *disk)
{
    key_text machine = machine_key();
    key_text key;
    char identity[400];
    ms__disk_identity(disk->dir, identity, sizeof identity);
    snprintf(key.text, sizeof key.text, "%.600s %s %s", machine.text, identity,
             disk->direct_io ? "direct" : "buffered");
    return key;
}

/* ---- rates, from the cache or measured ---------------------------------- */

/* The directory of cached rates; "" for none. */
typedef struct rate_store {
    char dir[MS_PATH_MAX];
    bool ignore; /* do not read cached rates; new rates are still written */
} rate_store;

static void open_store(const char *cache_dir, bool ignore, rate_store *store)
{
    store->ignore = ignore;
    if (cache_dir != NULL) {
        snprintf(store->dir, sizeof store->dir, "%s", cache_dir);
    } else if (!ms__cache_directory("", store->dir, sizeof store->dir)) {
        store->dir[0] = '\0';
    }
}

static bool rates_load(const rate_store *store, const char *kind, const char *key, const ms__rate *rates, size_t count)
{
    return !store->ignore && store->dir[0] != '\0' && ms__rate_cache_load(store->dir, kind, key, rates, count);
}

static void round_and_save(const rate_store *store, const char *kind, const char *key, const ms__rate *rates,
                           size_t count)
{
    for (size_t i = 0; i < count; i++) {
        *rates[i].value = ms__max_u64(ms_round_2_digits(*rates[i].value), 1);
    }
    if (store->dir[0] != '\0') {
        ms__rate_cache_save(store->dir, kind, key, rates, count);
    }
}

static void find_cpu_rates(const rate_store *store, const ms_ram *ram, ms_cpu *cpu)
{
    const ms__rate rates[] = {
        {"matmul_flops_per_s", &cpu->matmul_flops_per_s}, {"stream_bytes_per_s", &cpu->stream_bytes_per_s},
        {"fault_bytes_per_s", &cpu->fault_bytes_per_s},   {"checksum_bytes_per_s", &cpu->checksum_bytes_per_s},
        {"evaluations_per_s", &cpu->evaluations_per_s},   {"pack_bytes_per_s", &cpu->pack_bytes_per_s},
        {"unpack_bytes_per_s", &cpu->unpack_bytes_per_s},
    };
    size_t count = sizeof rates / sizeof rates[0];
    key_text key = cpu_key(cpu);
    if (rates_load(store, "cpu", key.text, rates, count)) {
        return;
    }
    uint64_t room_bytes = ms__min_u64(ram->available_bytes, ram->limit_bytes) / MEMORY_SHARE;
    ms_error err;
    if (ms__rates_measure_cpu(cpu, ms__min_u64(room_bytes, MEASURE_BYTES), &err) != MS_OK) {
        ms_log(MS_LOG_WARNING, "default rates stand in for this CPU's: %s", err.text);
        return;
    }
    round_and_save(store, "cpu", key.text, rates, count);
}

static int measure_disk(ms_disk *disk, ms_error *err)
{
    uint64_t file_bytes = ms__min_u64(MEASURE_BYTES, disk->free_bytes / DIR_SHARE);
    int rc = ms__rates_measure_disk(disk, file_bytes, DISK_LIMIT_NS, err);
    if (rc != MS_OK && disk->direct_io) {
        /* Some file systems accept O_DIRECT at open and refuse the transfers. */
        disk->direct_io = false;
        rc = ms__rates_measure_disk(disk, file_bytes, DISK_LIMIT_NS, err);
    }
    return rc;
}

static void find_disk_rates(const rate_store *store, ms_disk *disk)
{
    const ms__rate rates[] = {
        {"write_bytes_per_s", &disk->write_bytes_per_s},
        {"read_bytes_per_s", &disk->read_bytes_per_s},
    };
    size_t count = sizeof rates / sizeof rates[0];
    key_text key = disk_key(disk);
    if (rates_load(store, "disk", key.text, rates, count)) {
        return;
    }
    ms_error err;
    if (measure_disk(disk, &err) != MS_OK) {
        ms_log(MS_LOG_WARNING, "the disk tier is off: %s", err.text);
        snprintf(disk->refusal, sizeof disk->refusal, "%.90s failed a trial: %.140s", disk->dir, err.text);
        disk->dir[0] = '\0';
        return;
    }
    round_and_save(store, "disk", key.text, rates, count);
}

/* ---- GPUs --------------------------------------------------------------- */

uint32_t ms__probe_gpus(ms_gpu *gpus)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < MS_DEVICE_KIND_COUNT; i++) {
        found += ms__device_kinds[i]->probe(&gpus[found], MS_GPU_MAX - found);
    }
    for (uint32_t i = 0; i < found; i++) {
        gpus[i].matmul_flops_per_s = ms_round_2_digits(gpus[i].matmul_flops_per_s);
        gpus[i].stream_bytes_per_s = ms_round_2_digits(gpus[i].stream_bytes_per_s);
    }
    return found;
}

bool ms_hardware_load_gpu_rates(ms_hardware *hardware, uint32_t device, const char *cache_dir, const char *key)
{
    ms__rate rates[MS__GPU_RATES];
    rate_store store;
    if (device >= hardware->gpu_count) {
        return false;
    }
    open_store(cache_dir, false, &store);
    ms__gpu_rates(&hardware->gpu[device], rates);
    return rates_load(&store, "gpu", key, rates, MS__GPU_RATES);
}

void ms_hardware_set_gpu_rates(ms_hardware *hardware, uint32_t device, const char *cache_dir, const char *key,
                               const uint64_t *measured)
{
    ms__rate rates[MS__GPU_RATES];
    rate_store store;
    bool are_all = true;
    if (device >= hardware->gpu_count) {
        return;
    }
    ms__gpu_rates(&hardware->gpu[device], rates);
    for (size_t i = 0; i < MS__GPU_RATES; i++) {
        are_all &= measured[i] > 0;
        *rates[i].value = measured[i] > 0 ? ms_round_2_digits(measured[i]) : *rates[i].value;
    }
    if (are_all) {
        open_store(cache_dir, false, &store);
        round_and_save(&store, "gpu", key, rates, MS__GPU_RATES);
    }
}

/* ---- the whole ---------------------------------------------------------- */

/* A directory named in the options must be usable (MS_ECONFIG). Without one, finding none is no error. */
static int find_disk(const ms_hardware_options *options, ms_disk *disk, ms_error *err)
{
    char reason[MS_NAME_MAX];
    int rc = MS_OK;
    if (options->disk_dir == NULL) {
        ms__disk_choose(!options->no_measure, disk);
    } else if (options->no_measure) {
        ms__disk_verdict verdict = ms__disk_examine(options->disk_dir, false, disk, reason, sizeof reason);
        if (verdict == MS__DISK_UNFIT) {
            rc = ms_fail(err, MS_ECONFIG, "disk_offload_dir: %s %s", options->disk_dir, reason);
        } else if (verdict == MS__DISK_FULL) {
            disk->dir[0] = '\0';
        }
    } else {
        rc = ms_disk_probe(options->disk_dir, disk, err);
    }
    ms__rates_default_disk(disk);
    return rc;
}

int ms_hardware_probe(const ms_hardware_options *options, ms_hardware *hardware, ms_error *err)
{
    static const ms_hardware_options defaults;
    rate_store store;
    options = options != NULL ? options : &defaults;
    ms_hardware *found = ms_calloc(1, sizeof *found);
    if (found == NULL) {
        return ms_fail(err, MS_ENOMEM, "probing the hardware: out of memory");
    }
    ms__probe_cpu(&found->cpu);
    ms__rates_default_cpu(&found->cpu);
    int rc = ms__probe_ram(&found->ram, err);
    if (rc == MS_OK) {
        rc = find_disk(options, &found->disk, err);
    }
    if (rc == MS_OK) {
        found->gpu_count = options->no_gpus ? 0 : ms__probe_gpus(found->gpu);
        found->device = found->gpu_count > 0 ? 0 : -1;
        found->time_scale_permille = TIME_SCALE_NEUTRAL;
    }
    if (rc == MS_OK && !options->no_measure) {
        open_store(options->cache_dir, options->no_cache, &store);
        find_cpu_rates(&store, &found->ram, &found->cpu);
        if (found->disk.dir[0] != '\0') {
            find_disk_rates(&store, &found->disk);
        }
    }
    if (rc == MS_OK) {
        *hardware = *found;
    }
    ms_free(found);
    return rc;
}

uint64_t ms_hardware_at_pace(const ms_hardware *hardware, uint64_t predicted_ns)
{
    bool known = hardware != NULL && hardware->pace_permille != 0;
    return known ? ms__mul_div(predicted_ns, hardware->pace_permille, 1000) : predicted_ns;
}
