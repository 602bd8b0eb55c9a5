/*
 * Reads and writes the hardware description as JSON (docs/formats/hardware.schema.json). Reading is strict, so that a
 * saved description gives the same plans elsewhere: unknown members and values out of bounds are refused, and members are
 * required unless the schema says otherwise. Reading and writing a description gives the same text, byte for byte.
 */
#include <string.h>

#include "base/json_fields.h"
#include "hardware/isa.h"
#include "memscale/hardware.h"

enum { CPUS_MOST = 65536, COPY_ENGINES_MOST = 64, COMPUTE_MOST = 1000, TIME_SCALE_MOST = 1000000 };

/* ---- the fields ----------------------------------------------------------- */

#define COUNT_OF(table) (sizeof(table) / sizeof(table)[0])
/* A rate is never 0: it is a divisor everywhere. */
#define RATE(type, member) MS__FIELD_NUMBER(type, member, U64, 1, 0)

static const ms__json_field cpu_fields[] = {
    MS__FIELD_CHARS(ms_cpu, name),
    MS__FIELD_NUMBER(ms_cpu, usable_cpus, U32, 1, CPUS_MOST),
    RATE(ms_cpu, matmul_flops_per_s),
    RATE(ms_cpu, stream_bytes_per_s),
    RATE(ms_cpu, fault_bytes_per_s),
    RATE(ms_cpu, checksum_bytes_per_s),
    MS__FIELD_NUMBER(ms_cpu, evaluations_per_s, IF_ANY, 1, 0),
};
enum { CPU_FIELDS_BEFORE_ISA = 2 };
/* Both or neither. */
static const ms__json_field packing_fields[] = {RATE(ms_cpu, pack_bytes_per_s), RATE(ms_cpu, unpack_bytes_per_s)};

static const ms__json_field ram_fields[] = {
    MS__FIELD(ms_ram, total_bytes, U64),   MS__FIELD(ms_ram, available_bytes, U64),
    MS__FIELD(ms_ram, limit_bytes, LIMIT), MS__FIELD(ms_ram, memlock_bytes, LIMIT),
    MS__FIELD_CHARS(ms_ram, limit_source),
};

static const ms__json_field disk_fields[] = {
    MS__FIELD_CHARS(ms_disk, dir),       MS__FIELD_CHARS(ms_disk, filesystem), MS__FIELD(ms_disk, is_memory, BOOL),
    MS__FIELD(ms_disk, direct_io, BOOL), MS__FIELD(ms_disk, free_bytes, U64),  RATE(ms_disk, write_bytes_per_s),
    RATE(ms_disk, read_bytes_per_s),     MS__FIELD_CHARS(ms_disk, refusal),
};

static const ms__json_field process_fields[] = {
    MS__FIELD(ms_process, baseline_bytes, U64),          MS__FIELD(ms_process, scratch_bytes, U64),
    MS__FIELD(ms_process, reserve_bytes, IF_ANY),        MS__FIELD(ms_process, products_bytes, IF_ANY),
    MS__FIELD(ms_process, streamed_bytes, IF_ANY),       MS__FIELD(ms_process, window_bytes, IF_ANY),
    MS__FIELD(ms_process, window_reserve_bytes, IF_ANY), MS__FIELD(ms_process, storages_bytes, IF_ANY),
    MS__FIELD(ms_process, state_bytes, IF_ANY),          MS__FIELD(ms_process, traced_bytes, IF_ANY),
    MS__FIELD(ms_process, convolutions_bytes, IF_ANY),   MS__FIELD(ms_process, window_backward_ns, IF_ANY),
};

static const ms__json_field gpu_fields[] = {
    MS__FIELD_CHARS(ms_gpu, name),
    MS__FIELD(ms_gpu, total_bytes, U64),
    MS__FIELD(ms_gpu, free_bytes, U64),
    MS__FIELD_NUMBER(ms_gpu, copy_engines, U32, 0, COPY_ENGINES_MOST),
    MS__FIELD_NUMBER(ms_gpu, compute_major, U32, 0, COMPUTE_MOST),
    MS__FIELD_NUMBER(ms_gpu, compute_minor, U32, 0, COMPUTE_MOST),
    RATE(ms_gpu, matmul_flops_per_s),
    MS__FIELD_NUMBER(ms_gpu, bf16_flops_per_s, IF_ANY, 1, 0),
    MS__FIELD_NUMBER(ms_gpu, fp16_flops_per_s, IF_ANY, 1, 0),
    RATE(ms_gpu, stream_bytes_per_s),
    RATE(ms_gpu, to_host_bytes_per_s),
    RATE(ms_gpu, from_host_bytes_per_s),
    MS__FIELD_NUMBER(ms_gpu, pageable_to_host_bytes_per_s, IF_ANY, 1, 0),
    MS__FIELD_NUMBER(ms_gpu, pageable_from_host_bytes_per_s, IF_ANY, 1, 0),
};

/* The object `name` of the root, all of whose members are fields. */
static int read_part(const ms__json_at *root, const char *name, const ms__json_field *fields, size_t count, void *base)
{
    static const char *const no_others[] = {NULL};
    ms__json_at at;
    int rc = ms__json_object(root, name, &at);
    return rc == MS_OK ? ms__json_read_only_fields(&at, fields, count, no_others, base) : rc;
}

static void write_part(ms__json_writer *writer, json_t *root, const char *name, const ms__json_field *fields,
                       size_t count, const void *base)
{
    ms__json_put_fields(writer, ms__json_put_object(writer, root, name), fields, count, base);
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
            rc = ms__json_fail(&list, MS_EFORMAT, "\"%.64s\" is not a known instruction set", name);
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
    static const char *const others[] = {"isa", "pack_bytes_per_s", "unpack_bytes_per_s", NULL};
    ms__json_at at;
    int rc = ms__json_object(root, "cpu", &at);
    if (rc == MS_OK) {
        rc = ms__json_read_only_fields(&at, cpu_fields, COUNT_OF(cpu_fields), others, cpu);
    }
    if (rc == MS_OK) {
        rc = read_isa(&at, &cpu->isa);
    }
    if (rc == MS_OK && (ms__json_has(&at, others[1]) || ms__json_has(&at, others[2]))) {
        rc = ms__json_read_fields(&at, packing_fields, COUNT_OF(packing_fields), cpu);
    }
    return rc;
}

static int read_process(const ms__json_at *root, ms_process *process)
{
    int rc = read_part(root, "process", process_fields, COUNT_OF(process_fields), process);
    if (rc == MS_OK && process->reserve_bytes > process->scratch_bytes) {
        return ms__json_fail(root, MS_EFORMAT, "\"process\": \"reserve_bytes\" is a part of \"scratch_bytes\"");
    }
    if (rc == MS_OK && process->products_bytes > process->scratch_bytes - process->reserve_bytes) {
        return ms__json_fail(root, MS_EFORMAT,
                             "\"process\": \"products_bytes\" is a part of the expected \"scratch_bytes\"");
    }
    if (rc == MS_OK && process->state_bytes > process->baseline_bytes) {
        return ms__json_fail(root, MS_EFORMAT, "\"process\": \"state_bytes\" is a part of \"baseline_bytes\"");
    }
    return rc;
}

/* Older documents have no kind. */
static int read_kind(const ms__json_at *at, ms_device_kind *kind)
{
    const char *name;
    ms_error err;
    if (!ms__json_has(at, "kind")) {
        return MS_OK;
    }
    int rc = ms__json_string(at, "kind", &name);
    if (rc == MS_OK && (ms_device_kind_named(name, kind, &err) != MS_OK || ms_device_host_is_device(*kind))) {
        rc = ms__json_fail(at, MS_EFORMAT, "\"kind\": memscale knows no GPU of kind \"%.64s\"", name);
    }
    return rc;
}

static int read_gpu(const ms__json_at *at, ms_gpu *gpu)
{
    static const char *const others[] = {"kind", NULL};
    int rc = ms__json_read_only_fields(at, gpu_fields, COUNT_OF(gpu_fields), others, gpu);
    return rc == MS_OK ? read_kind(at, &gpu->kind) : rc;
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

/* -1, or an index into the described GPUs. */
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
    static const char *const names[] = {
        "version", "cpu", "ram", "disk", "process", "gpus", "device", "time_scale_permille", "pace_permille"};
    int rc = ms__json_version(root, 1, 1, NULL);
    if (rc == MS_OK) {
        rc = ms__json_only(root, names, COUNT_OF(names));
    }
    if (rc == MS_OK) {
        rc = read_cpu(root, &hardware->cpu);
    }
    if (rc == MS_OK) {
        rc = read_part(root, "ram", ram_fields, COUNT_OF(ram_fields), &hardware->ram);
    }
    if (rc == MS_OK) {
        rc = read_part(root, "disk", disk_fields, COUNT_OF(disk_fields), &hardware->disk);
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
    if (rc == MS_OK) {
        rc = ms__json_u64_or(root, "pace_permille", 1, TIME_SCALE_MOST, 0, &hardware->pace_permille);
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
    ms__json_put_fields(writer, object, cpu_fields, CPU_FIELDS_BEFORE_ISA, cpu);
    json_t *isa = ms__json_put_array(writer, object, "isa");
    for (uint32_t bit = 1; bit != 0; bit <<= 1) {
        if ((cpu->isa & bit) != 0 && ms__isa_name(bit) != NULL) {
            ms__json_add_string(writer, isa, ms__isa_name(bit));
        }
    }
    ms__json_put_fields(writer, object, cpu_fields + CPU_FIELDS_BEFORE_ISA,
                        COUNT_OF(cpu_fields) - CPU_FIELDS_BEFORE_ISA, cpu);
    if (cpu->pack_bytes_per_s > 0 && cpu->unpack_bytes_per_s > 0) {
        ms__json_put_fields(writer, object, packing_fields, COUNT_OF(packing_fields), cpu);
    }
}

static void write_gpu(ms__json_writer *writer, json_t *list, const ms_gpu *gpu)
{
    json_t *object = ms__json_add_object(writer, list);
    if (gpu->kind != MS_DEVICE_UNSTATED) {
        ms__json_put_string(writer, object, "kind", ms_device_kind_name(gpu->kind));
    }
    ms__json_put_fields(writer, object, gpu_fields, COUNT_OF(gpu_fields), gpu);
}

char *ms_hardware_to_json(const ms_hardware *hardware)
{
    ms__json_writer writer = {0};
    json_t *root = ms__json_new(&writer);
    ms__json_put_u64(&writer, root, "version", 1);
    write_cpu(&writer, root, &hardware->cpu);
    write_part(&writer, root, "ram", ram_fields, COUNT_OF(ram_fields), &hardware->ram);
    write_part(&writer, root, "disk", disk_fields, COUNT_OF(disk_fields), &hardware->disk);
    write_part(&writer, root, "process", process_fields, COUNT_OF(process_fields), &hardware->process);
    json_t *gpus = ms__json_put_array(&writer, root, "gpus");
    for (uint32_t i = 0; i < hardware->gpu_count && i < MS_GPU_MAX; i++) {
        write_gpu(&writer, gpus, &hardware->gpu[i]);
    }
    ms__json_put_value(&writer, root, "device", json_integer(hardware->device));
    ms__json_put_u64(&writer, root, "time_scale_permille", hardware->time_scale_permille);
    if (hardware->pace_permille != 0) {
        ms__json_put_u64(&writer, root, "pace_permille", hardware->pace_permille);
    }
    char *text = NULL;
    return ms__json_finish(&writer, root, "hardware", &text, NULL) == MS_OK ? text : NULL;
}
