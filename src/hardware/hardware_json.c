/*
 * Reads and writes the hardware description as JSON (docs/formats/
 * hardware.schema.json). Reading is strict: every member is required, bounded
 * and known, so that what was saved by one machine plans alike on another.
 * What is read and written again is the same text byte for byte.
 */
#include <string.h>

#include "base/json.h"
#include "hardware/isa.h"
#include "memscale/hardware.h"

enum { CPUS_MOST = 65536, COPY_ENGINES_MOST = 64, COMPUTE_MOST = 1000, TIME_SCALE_MOST = 1000000 };

/* ---- members of more than one object ------------------------------------ */

#define READ_ALL(object, least, ...) \
    ms__json_u64s(object, least, INT64_MAX, (const ms__json_u64_member[]){__VA_ARGS__}, \
                  sizeof((const ms__json_u64_member[]){__VA_ARGS__}) / sizeof(ms__json_u64_member))
#define READ_BYTES(object, ...) READ_ALL(object, 0, __VA_ARGS__)
/* A rate is never 0: everybody divides by it. */
#define READ_RATES(object, ...) READ_ALL(object, 1, __VA_ARGS__)

#define ONLY(object, ...) \
    ms__json_only(object, (const char *const[]){__VA_ARGS__}, \
                  sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

static int read_text(const ms__json_at *object, const char *name, char *out, size_t size)
{
    const char *text;
    int rc = ms__json_string(object, name, &text);
    if (rc != MS_OK) {
        return rc;
    }
    size_t length = strlen(text);
    if (length >= size) {
        return ms__json_fail(object, MS_EFORMAT, "\"%s\" is longer than %zu bytes", name, size - 1);
    }
    memcpy(out, text, length + 1);
    return MS_OK;
}

/* null stands for "no limit"; the member itself must be there. */
static int read_limit(const ms__json_at *object, const char *name, uint64_t *out)
{
    if (json_is_null(json_object_get(object->value, name))) {
        *out = UINT64_MAX;
        return MS_OK;
    }
    return ms__json_u64(object, name, 0, INT64_MAX, out);
}

/* ---- reading ------------------------------------------------------------ */

static int read_isa(const ms__json_at *cpu, uint32_t *isa)
{
    ms__json_at list;
    int rc = ms__json_array(cpu, "isa", &list);
    uint32_t bits = 0;
    for (size_t i = 0; rc == MS_OK && i < ms__json_count(&list); i++) {
        const char *name;
        rc = ms__json_item_string(&list, i, &name);
        if (rc != MS_OK) {
            break;
        }
        uint32_t bit = ms__isa_from_name(name);
        if (bit == 0) {
            rc = ms__json_fail(&list, MS_EFORMAT, "\"%.64s\" is no known instruction set", name);
        } else if (bits >= bit) {
            rc = ms__json_fail(&list, MS_EFORMAT, "\"%.64s\" is out of order or twice here", name);
        }
        bits |= bit;
    }
    if (rc == MS_OK) {
        *isa = bits;
    }
    return rc;
}

static int read_cpu(const ms__json_at *root, ms_cpu *cpu)
{
    ms__json_at at;
    int rc = ms__json_object(root, "cpu", &at);
    if (rc == MS_OK) {
        rc = ONLY(&at, "name", "usable_cpus", "isa", "matmul_flops_per_s", "stream_bytes_per_s", "fault_bytes_per_s",
                  "checksum_bytes_per_s", "evaluations_per_s", "pack_bytes_per_s", "unpack_bytes_per_s");
    }
    if (rc == MS_OK) {
        rc = read_text(&at, "name", cpu->name, sizeof cpu->name);
    }
    if (rc == MS_OK) {
        rc = ms__json_u32(&at, "usable_cpus", 1, CPUS_MOST, &cpu->usable_cpus);
    }
    if (rc == MS_OK) {
        rc = read_isa(&at, &cpu->isa);
    }
    if (rc == MS_OK) {
        rc = READ_RATES(
            &at, {"matmul_flops_per_s", &cpu->matmul_flops_per_s}, {"stream_bytes_per_s", &cpu->stream_bytes_per_s},
            {"fault_bytes_per_s", &cpu->fault_bytes_per_s}, {"checksum_bytes_per_s", &cpu->checksum_bytes_per_s});
    }
    if (rc == MS_OK && ms__json_has(&at, "evaluations_per_s")) {
        rc = READ_RATES(&at, {"evaluations_per_s", &cpu->evaluations_per_s});
    }
    if (rc == MS_OK && (ms__json_has(&at, "pack_bytes_per_s") || ms__json_has(&at, "unpack_bytes_per_s"))) {
        rc = READ_RATES(&at, {"pack_bytes_per_s", &cpu->pack_bytes_per_s},
                        {"unpack_bytes_per_s", &cpu->unpack_bytes_per_s});
    }
    return rc;
}

static int read_ram(const ms__json_at *root, ms_ram *ram)
{
    ms__json_at at;
    int rc = ms__json_object(root, "ram", &at);
    if (rc == MS_OK) {
        rc = ONLY(&at, "total_bytes", "available_bytes", "limit_bytes", "memlock_bytes", "limit_source");
    }
    if (rc == MS_OK) {
        rc = READ_BYTES(&at, {"total_bytes", &ram->total_bytes}, {"available_bytes", &ram->available_bytes});
    }
    if (rc == MS_OK) {
        rc = read_limit(&at, "limit_bytes", &ram->limit_bytes);
    }
    if (rc == MS_OK) {
        rc = read_limit(&at, "memlock_bytes", &ram->memlock_bytes);
    }
    if (rc == MS_OK) {
        rc = read_text(&at, "limit_source", ram->limit_source, sizeof ram->limit_source);
    }
    return rc;
}

static int read_disk(const ms__json_at *root, ms_disk *disk)
{
    ms__json_at at;
    int rc = ms__json_object(root, "disk", &at);
    if (rc == MS_OK) {
        rc = ONLY(&at, "dir", "filesystem", "is_memory", "direct_io", "free_bytes", "write_bytes_per_s",
                  "read_bytes_per_s", "refusal");
    }
    if (rc == MS_OK) {
        rc = read_text(&at, "dir", disk->dir, sizeof disk->dir);
    }
    if (rc == MS_OK) {
        rc = read_text(&at, "filesystem", disk->filesystem, sizeof disk->filesystem);
    }
    if (rc == MS_OK) {
        rc = ms__json_bool(&at, "is_memory", &disk->is_memory);
    }
    if (rc == MS_OK) {
        rc = ms__json_bool(&at, "direct_io", &disk->direct_io);
    }
    if (rc == MS_OK) {
        rc = READ_BYTES(&at, {"free_bytes", &disk->free_bytes});
    }
    if (rc == MS_OK) {
        rc = READ_RATES(&at, {"write_bytes_per_s", &disk->write_bytes_per_s},
                        {"read_bytes_per_s", &disk->read_bytes_per_s});
    }
    if (rc == MS_OK) {
        rc = read_text(&at, "refusal", disk->refusal, sizeof disk->refusal);
    }
    return rc;
}

static int read_process(const ms__json_at *root, ms_process *process)
{
    ms__json_at at;
    int rc = ms__json_object(root, "process", &at);
    if (rc == MS_OK) {
        rc = ONLY(&at, "baseline_bytes", "scratch_bytes", "reserve_bytes", "products_bytes");
    }
    if (rc == MS_OK) {
        rc = READ_BYTES(&at, {"baseline_bytes", &process->baseline_bytes}, {"scratch_bytes", &process->scratch_bytes});
    }
    if (rc == MS_OK && ms__json_has(&at, "reserve_bytes")) {
        rc = READ_BYTES(&at, {"reserve_bytes", &process->reserve_bytes});
    }
    if (rc == MS_OK && process->reserve_bytes > process->scratch_bytes) {
        rc = ms__json_fail(&at, MS_EFORMAT, "\"reserve_bytes\" is a part of \"scratch_bytes\"");
    }
    if (rc == MS_OK && ms__json_has(&at, "products_bytes")) {
        rc = READ_BYTES(&at, {"products_bytes", &process->products_bytes});
    }
    if (rc == MS_OK && process->products_bytes > process->scratch_bytes - process->reserve_bytes) {
        rc = ms__json_fail(&at, MS_EFORMAT, "\"products_bytes\" is a part of the expected \"scratch_bytes\"");
    }
    return rc;
}

/* Documents of before there were kinds say none. */
static int read_kind(const ms__json_at *at, ms_device_kind *kind)
{
    char name[MS_NAME_MAX];
    ms_error err;
    int rc = read_text(at, "kind", name, sizeof name);
    if (rc == MS_OK && (ms_device_kind_named(name, kind, &err) != MS_OK || ms_device_host_is_device(*kind))) {
        rc = ms__json_fail(at, MS_EFORMAT, "\"kind\": memscale knows no GPU of kind \"%.64s\"", name);
    }
    return rc;
}

static int read_gpu(const ms__json_at *at, ms_gpu *gpu)
{
    int rc = ONLY(at, "kind", "name", "total_bytes", "free_bytes", "copy_engines", "compute_major", "compute_minor",
                  "matmul_flops_per_s", "stream_bytes_per_s", "to_host_bytes_per_s", "from_host_bytes_per_s");
    if (rc == MS_OK && ms__json_has(at, "kind")) {
        rc = read_kind(at, &gpu->kind);
    }
    if (rc == MS_OK) {
        rc = read_text(at, "name", gpu->name, sizeof gpu->name);
    }
    if (rc == MS_OK) {
        rc = READ_BYTES(at, {"total_bytes", &gpu->total_bytes}, {"free_bytes", &gpu->free_bytes});
    }
    if (rc == MS_OK) {
        rc = ms__json_u32(at, "copy_engines", 0, COPY_ENGINES_MOST, &gpu->copy_engines);
    }
    if (rc == MS_OK) {
        rc = ms__json_u32(at, "compute_major", 0, COMPUTE_MOST, &gpu->compute_major);
    }
    if (rc == MS_OK) {
        rc = ms__json_u32(at, "compute_minor", 0, COMPUTE_MOST, &gpu->compute_minor);
    }
    if (rc == MS_OK) {
        rc = READ_RATES(
            at, {"matmul_flops_per_s", &gpu->matmul_flops_per_s}, {"stream_bytes_per_s", &gpu->stream_bytes_per_s},
            {"to_host_bytes_per_s", &gpu->to_host_bytes_per_s}, {"from_host_bytes_per_s", &gpu->from_host_bytes_per_s});
    }
    return rc;
}

static int read_gpus(const ms__json_at *root, ms_hardware *hardware)
{
    ms__json_at list;
    int rc = ms__json_array(root, "gpus", &list);
    if (rc != MS_OK) {
        return rc;
    }
    size_t count = ms__json_count(&list);
    if (count > MS_GPU_MAX) {
        return ms__json_fail(&list, MS_EFORMAT, "more than %d entries", MS_GPU_MAX);
    }
    for (size_t i = 0; i < count && rc == MS_OK; i++) {
        ms__json_at at;
        rc = ms__json_item_object(&list, i, &at);
        if (rc == MS_OK) {
            rc = read_gpu(&at, &hardware->gpu[i]);
        }
    }
    hardware->gpu_count = (uint32_t)count;
    return rc;
}

/* -1, or the index of a GPU that is described. */
static int read_device(const ms__json_at *root, ms_hardware *hardware)
{
    const json_t *value = json_object_get(root->value, "device");
    json_int_t device = json_integer_value(value);
    if (!json_is_integer(value) || device < -1 || device >= (json_int_t)hardware->gpu_count) {
        return ms__json_fail(root, MS_EFORMAT, "\"device\" must be -1 (the CPU) or an index into \"gpus\"");
    }
    hardware->device = (int32_t)device;
    return MS_OK;
}

static int read_hardware(const ms__json_at *root, ms_hardware *hardware)
{
    int rc = ms__json_version(root, 1, 1, NULL);
    if (rc == MS_OK) {
        rc = ONLY(root, "version", "cpu", "ram", "disk", "process", "gpus", "device", "time_scale_permille");
    }
    if (rc == MS_OK) {
        rc = read_cpu(root, &hardware->cpu);
    }
    if (rc == MS_OK) {
        rc = read_ram(root, &hardware->ram);
    }
    if (rc == MS_OK) {
        rc = read_disk(root, &hardware->disk);
    }
    if (rc == MS_OK) {
        rc = read_process(root, &hardware->process);
    }
    if (rc == MS_OK) {
        rc = read_gpus(root, hardware);
    }
    if (rc == MS_OK) {
        rc = read_device(root, hardware);
    }
    if (rc == MS_OK) {
        rc = ms__json_u64(root, "time_scale_permille", 1, TIME_SCALE_MOST, &hardware->time_scale_permille);
    }
    return rc;
}

int ms_hardware_parse(const char *json, ms_hardware *hardware, ms_error *err)
{
    json_t *tree = NULL;
    ms__json_at root;
    ms_hardware *parsed = ms_calloc(1, sizeof *parsed); /* tens of kilobytes */
    int rc = parsed != NULL ? MS_OK : ms_fail(err, MS_ENOMEM, "hardware: out of memory");
    if (rc == MS_OK) {
        rc = ms__json_parse(json, strlen(json), "hardware", &tree, &root, err);
    }
    if (rc == MS_OK) {
        rc = read_hardware(&root, parsed);
        json_decref(tree);
    }
    if (rc == MS_OK) {
        *hardware = *parsed;
    }
    ms_free(parsed);
    return rc;
}

/* ---- writing ------------------------------------------------------------ */

static void write_cpu(ms__json_writer *writer, json_t *root, const ms_cpu *cpu)
{
    json_t *object = ms__json_put_object(writer, root, "cpu");
    ms__json_put_string(writer, object, "name", cpu->name);
    ms__json_put_u64(writer, object, "usable_cpus", cpu->usable_cpus);
    json_t *isa = ms__json_put_array(writer, object, "isa");
    for (uint32_t bit = 1; bit != 0; bit <<= 1) {
        if ((cpu->isa & bit) != 0 && ms__isa_name(bit) != NULL) {
            ms__json_add_string(writer, isa, ms__isa_name(bit));
        }
    }
    ms__json_put_u64(writer, object, "matmul_flops_per_s", cpu->matmul_flops_per_s);
    ms__json_put_u64(writer, object, "stream_bytes_per_s", cpu->stream_bytes_per_s);
    ms__json_put_u64(writer, object, "fault_bytes_per_s", cpu->fault_bytes_per_s);
    ms__json_put_u64(writer, object, "checksum_bytes_per_s", cpu->checksum_bytes_per_s);
    if (cpu->evaluations_per_s > 0) {
        ms__json_put_u64(writer, object, "evaluations_per_s", cpu->evaluations_per_s);
    }
    if (cpu->pack_bytes_per_s > 0 && cpu->unpack_bytes_per_s > 0) {
        ms__json_put_u64(writer, object, "pack_bytes_per_s", cpu->pack_bytes_per_s);
        ms__json_put_u64(writer, object, "unpack_bytes_per_s", cpu->unpack_bytes_per_s);
    }
}

static void write_ram(ms__json_writer *writer, json_t *root, const ms_ram *ram)
{
    json_t *object = ms__json_put_object(writer, root, "ram");
    ms__json_put_u64(writer, object, "total_bytes", ram->total_bytes);
    ms__json_put_u64(writer, object, "available_bytes", ram->available_bytes);
    ms__json_put_u64_or_null(writer, object, "limit_bytes", ram->limit_bytes, UINT64_MAX);
    ms__json_put_u64_or_null(writer, object, "memlock_bytes", ram->memlock_bytes, UINT64_MAX);
    ms__json_put_string(writer, object, "limit_source", ram->limit_source);
}

static void write_disk(ms__json_writer *writer, json_t *root, const ms_disk *disk)
{
    json_t *object = ms__json_put_object(writer, root, "disk");
    ms__json_put_string(writer, object, "dir", disk->dir);
    ms__json_put_string(writer, object, "filesystem", disk->filesystem);
    ms__json_put_bool(writer, object, "is_memory", disk->is_memory);
    ms__json_put_bool(writer, object, "direct_io", disk->direct_io);
    ms__json_put_u64(writer, object, "free_bytes", disk->free_bytes);
    ms__json_put_u64(writer, object, "write_bytes_per_s", disk->write_bytes_per_s);
    ms__json_put_u64(writer, object, "read_bytes_per_s", disk->read_bytes_per_s);
    ms__json_put_string(writer, object, "refusal", disk->refusal);
}

static void write_process(ms__json_writer *writer, json_t *root, const ms_process *process)
{
    json_t *object = ms__json_put_object(writer, root, "process");
    ms__json_put_u64(writer, object, "baseline_bytes", process->baseline_bytes);
    ms__json_put_u64(writer, object, "scratch_bytes", process->scratch_bytes);
    if (process->reserve_bytes > 0) {
        ms__json_put_u64(writer, object, "reserve_bytes", process->reserve_bytes);
    }
    if (process->products_bytes > 0) {
        ms__json_put_u64(writer, object, "products_bytes", process->products_bytes);
    }
}

static void write_gpu(ms__json_writer *writer, json_t *list, const ms_gpu *gpu)
{
    json_t *object = ms__json_add_object(writer, list);
    if (gpu->kind != MS_DEVICE_UNSTATED) {
        ms__json_put_string(writer, object, "kind", ms_device_kind_name(gpu->kind));
    }
    ms__json_put_string(writer, object, "name", gpu->name);
    ms__json_put_u64(writer, object, "total_bytes", gpu->total_bytes);
    ms__json_put_u64(writer, object, "free_bytes", gpu->free_bytes);
    ms__json_put_u64(writer, object, "copy_engines", gpu->copy_engines);
    ms__json_put_u64(writer, object, "compute_major", gpu->compute_major);
    ms__json_put_u64(writer, object, "compute_minor", gpu->compute_minor);
    ms__json_put_u64(writer, object, "matmul_flops_per_s", gpu->matmul_flops_per_s);
    ms__json_put_u64(writer, object, "stream_bytes_per_s", gpu->stream_bytes_per_s);
    ms__json_put_u64(writer, object, "to_host_bytes_per_s", gpu->to_host_bytes_per_s);
    ms__json_put_u64(writer, object, "from_host_bytes_per_s", gpu->from_host_bytes_per_s);
}

char *ms_hardware_to_json(const ms_hardware *hardware)
{
    ms__json_writer writer = {0};
    json_t *root = ms__json_new(&writer);
    ms__json_put_u64(&writer, root, "version", 1);
    write_cpu(&writer, root, &hardware->cpu);
    write_ram(&writer, root, &hardware->ram);
    write_disk(&writer, root, &hardware->disk);
    write_process(&writer, root, &hardware->process);
    json_t *gpus = ms__json_put_array(&writer, root, "gpus");
    for (uint32_t i = 0; i < hardware->gpu_count && i < MS_GPU_MAX; i++) {
        write_gpu(&writer, gpus, &hardware->gpu[i]);
    }
    ms__json_put_value(&writer, root, "device", json_integer(hardware->device));
    ms__json_put_u64(&writer, root, "time_scale_permille", hardware->time_scale_permille);
    char *text = NULL;
    return ms__json_finish(&writer, root, "hardware", &text, NULL) == MS_OK ? text : NULL;
}
