/*
 * `memscale doctor`: one line per check of this machine, with advice for every problem. The checks are a table. Each
 * reads the hardware description or asks the system. They leave only the directories of cache and disk tier and the
 * measured rates.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/json.h"
#include "base/os/file.h"
#include "base/os/procfs.h"
#include "base/units.h"
#include "commands.h"
#include "common.h"
#include "device/device.h"
#include "doctor.h"
#include "hardware/isa.h"
#include "hardware/probe.h"
#include "memscale/hardware.h"
#include "options.h"

static const char help[] = "Usage: memscale doctor [--json] [--disk-dir DIR]\n"
                           "\n"
                           "Checks what memscale needs or can use on this machine. Each line says ok, warn\n"
                           "(it works, but slower or with a part switched off) or fail, with advice.\n"
                           "\n"
                           "  --json          print a JSON document (docs/formats/doctor.schema.json)\n"
                           "  --disk-dir DIR  check this directory for the disk tier, not a chosen one; it must\n"
                           "                  exist\n"
                           "\n"
                           "Examples:\n"
                           "  memscale doctor\n"
                           "  memscale doctor --disk-dir /scratch\n"
                           "\n"
                           "Exit status: 0, 1 if a check fails, 2 for a wrong option.\n";

/* ---- results ------------------------------------------------------------ */

static const char *const status_names[] = {"ok", "warn", "fail"};

void doctor_say(check_result *result, const char *fmt, ...)
{
    size_t used = strlen(result->text);
    va_list args;
    va_start(args, fmt);
    vsnprintf(result->text + used, sizeof result->text - used, fmt, args);
    va_end(args);
}

void doctor_advise(check_result *result, check_status status, const char *advice)
{
    result->status = status;
    snprintf(result->advice, sizeof result->advice, "%s", advice);
}

/* ---- the checks --------------------------------------------------------- */

static void check_cpu(const patient *p, check_result *result)
{
    const ms_cpu *cpu = &p->machine->cpu;
    doctor_say(result, "%s, %u usable", cpu->name, (unsigned)cpu->usable_cpus);
    for (uint32_t bit = 1; bit != 0; bit <<= 1) {
        if ((cpu->isa & bit) != 0 && ms__isa_name(bit) != NULL) {
            doctor_say(result, ", %s", ms__isa_name(bit));
        }
    }
    if ((cpu->isa & (MS_ISA_AVX2 | MS_ISA_NEON)) == 0) {
        doctor_say(result, ", no vector instructions that kernels know");
        doctor_advise(result, CHECK_WARN, "kernels take their plain C path here; nothing to do");
    }
}

static void check_memory(const patient *p, check_result *result)
{
    const ms_ram *ram = &p->machine->ram;
    doctor_say(result, "%s, %s available", ms__text_bytes(ram->total_bytes).text,
               ms__text_bytes(ram->available_bytes).text);
    if (ram->limit_bytes != UINT64_MAX) {
        doctor_say(result, ", limited to %s by %s", ms__text_bytes(ram->limit_bytes).text, ram->limit_source);
    } else {
        doctor_say(result, ", no control group limit");
    }
    if (ram->available_bytes < ram->total_bytes / 10) {
        doctor_advise(result, CHECK_WARN, "other programs hold most of the memory: end some of them");
    }
}

static void check_peak(const patient *p, check_result *result)
{
    ms_error err;
    (void)p;
    if (ms__resident_reset_peak(&err) == MS_OK) {
        doctor_say(result, "the peak of resident memory can be measured from any moment on");
        return;
    }
    doctor_say(result, "%s", err.text);
    doctor_advise(result, CHECK_WARN, "measured peaks will include memory from before wrap()");
}

static void check_huge_pages(const patient *p, check_result *result)
{
    char text[128];
    (void)p;
    if (!ms__file_read_small("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text)) {
        doctor_say(result, "this kernel has no transparent huge pages");
        doctor_advise(result, CHECK_WARN, "fresh memory costs more time; nothing to do");
        return;
    }
    text[strcspn(text, "\n")] = '\0';
    doctor_say(result, "transparent huge pages: %s", text);
    if (strstr(text, "[never]") != NULL) {
        doctor_advise(result, CHECK_WARN, "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
    }
}

static void check_disk(const patient *p, check_result *result)
{
    enum { SLOW_BYTES_PER_S = 200000000 };
    const ms_disk *disk = &p->machine->disk;
    if (disk->dir[0] == '\0') {
        doctor_say(result, "the disk tier is off: %s", disk->refusal);
        doctor_advise(result, CHECK_WARN, "name a directory on a disk with Config(disk_offload_dir=...)");
        return;
    }
    doctor_say(result, "%s (%s): %s free, ", disk->dir, disk->filesystem, ms__text_bytes(disk->free_bytes).text);
    doctor_say(result, "write %s/s, read %s/s", ms__text_bytes(disk->write_bytes_per_s).text,
               ms__text_bytes(disk->read_bytes_per_s).text);
    if (!disk->direct_io) {
        doctor_say(result, ", no direct I/O");
        doctor_advise(result, CHECK_WARN, "spilled bytes pass through the page cache; ext4 and xfs have direct I/O");
    } else if (disk->write_bytes_per_s < SLOW_BYTES_PER_S) {
        doctor_advise(result, CHECK_WARN, "slow: plans will mostly recompute; name a faster disk");
    }
}

static void say_why_none(const ms__device_kind *kind, check_result *result)
{
    if (kind->host_is_device) {
        return;
    }
    doctor_say(result, "%s%s", result->text[0] != '\0' ? "; " : "",
               kind->has_driver() ? kind->no_device : kind->no_driver);
    if (kind->has_driver()) {
        doctor_advise(result, CHECK_WARN, kind->no_device_advice);
    }
}

static void check_gpu(const patient *p, check_result *result)
{
    for (uint32_t i = 0; p->machine->gpu_count == 0 && i < MS_DEVICE_KIND_COUNT; i++) {
        say_why_none(ms__device_kinds[i], result);
    }
    for (uint32_t i = 0; i < p->machine->gpu_count; i++) {
        doctor_say(result, "%s%s, %s", i > 0 ? "; " : "", p->machine->gpu[i].name,
                   ms__text_bytes(p->machine->gpu[i].total_bytes).text);
    }
}

static void check_cache(const patient *p, check_result *result)
{
    char dir[MS_PATH_MAX];
    ms__file file = MS__FILE_CLOSED;
    ms_error err;
    (void)p;
    if (!ms__cache_directory("", dir, sizeof dir)) {
        doctor_say(result, "neither XDG_CACHE_HOME nor HOME is set");
        doctor_advise(result, CHECK_WARN, "rates are measured again in every process; set HOME");
        return;
    }
    if (ms__directory_make(dir, &err) != MS_OK || ms__file_open_unnamed(dir, false, &file, &err) != MS_OK) {
        doctor_say(result, "%s can't be written (%s)", dir, strerror(err.system_errno));
        doctor_advise(result, CHECK_WARN, "rates are measured again in every process; set XDG_CACHE_HOME");
        return;
    }
    ms__file_close(&file);
    doctor_say(result, "%s can be written", dir);
}

typedef struct check {
    const char *name;
    bool needs_machine;
    void (*run)(const patient *p, check_result *result);
} check;

static const check checks[] = {
    {"versions", false, doctor_check_versions},
    {"packages", false, doctor_check_packages},
    {"cpu", true, check_cpu},
    {"memory", true, check_memory},
    {"peak", false, check_peak},
    {"huge-pages", false, check_huge_pages},
    {"disk", true, check_disk},
    {"gpu", true, check_gpu},
    {"cache", false, check_cache},
    {"cgroup", true, doctor_check_cgroup},
    {"conflicts", false, doctor_check_conflicts},
};

enum { CHECK_COUNT = sizeof checks / sizeof checks[0] };

static void run_check(const check *c, const patient *p, check_result *result)
{
    memset(result, 0, sizeof *result);
    if (c->needs_machine && p->machine == NULL) {
        doctor_say(result, "%s", p->probe_error.text);
        doctor_advise(result, CHECK_FAIL, "memscale can't describe this machine without it");
        return;
    }
    c->run(p, result);
}

/* ---- output ------------------------------------------------------------- */

static void print_lines(const check_result *results)
{
    for (size_t i = 0; i < CHECK_COUNT; i++) {
        printf("%-4s  %-10s  %s\n", status_names[results[i].status], checks[i].name, results[i].text);
        if (results[i].advice[0] != '\0') {
            printf("                  -> %s\n", results[i].advice);
        }
    }
}

static int print_json(const check_result *results, bool has_failure)
{
    ms__json_writer writer = {0};
    ms_error err;
    char *text = NULL;
    json_t *root = ms__json_new(&writer);
    ms__json_put_u64(&writer, root, "version", 1);
    ms__json_put_bool(&writer, root, "ok", !has_failure);
    json_t *list = ms__json_put_array(&writer, root, "checks");
    for (size_t i = 0; i < CHECK_COUNT; i++) {
        json_t *object = ms__json_add_object(&writer, list);
        ms__json_put_string(&writer, object, "name", checks[i].name);
        ms__json_put_string(&writer, object, "status", status_names[results[i].status]);
        ms__json_put_string(&writer, object, "text", results[i].text);
        ms__json_put_string(&writer, object, "advice", results[i].advice);
    }
    if (ms__json_finish(&writer, root, "doctor", &text, &err) != MS_OK) {
        return cli_fail(&err);
    }
    return cli_print_made(text);
}

/* Runs every check; returns the number of failures. An unusable named directory fails the disk check only. */
static int run_checks(patient *p, ms_hardware *machine, check_result *results)
{
    ms_hardware_options options = {.disk_dir = p->disk_dir};
    char refusal[sizeof results->text] = "";
    int rc = p->disk_dir != NULL ? cli_check_directory(p->disk_dir, &p->probe_error) : MS_OK;
    if (rc == MS_OK) {
        rc = ms_hardware_probe(&options, machine, &p->probe_error);
    }
    if (rc == MS_ECONFIG && p->disk_dir != NULL) {
        snprintf(refusal, sizeof refusal, "%s", p->probe_error.text);
        options.disk_dir = NULL;
        rc = ms_hardware_probe(&options, machine, &p->probe_error);
    }
    p->machine = rc == MS_OK ? machine : NULL;
    int failures = 0;
    for (size_t i = 0; i < CHECK_COUNT; i++) {
        run_check(&checks[i], p, &results[i]);
        if (checks[i].run == check_disk && refusal[0] != '\0') {
            memset(&results[i], 0, sizeof results[i]);
            doctor_say(&results[i], "%s", refusal);
            doctor_advise(&results[i], CHECK_FAIL, "name another directory, or none");
        }
        failures += results[i].status == CHECK_FAIL;
    }
    return failures;
}

int cmd_doctor(int argc, char **argv)
{
    bool as_json = false;
    patient p = {0};
    const cli_option table[] = {
        {"--json", &as_json, NULL},
        {"--disk-dir", NULL, &p.disk_dir},
    };
    int status = cli_parse(argc, argv, table, sizeof table / sizeof table[0], help);
    if (status != CLI_GO_ON) {
        return status;
    }
    check_result results[CHECK_COUNT];
    ms_log_set_sink(NULL, NULL); /* checks report the problems */
    ms_hardware *machine = ms_calloc(1, sizeof *machine);
    if (machine == NULL) {
        ms_fail(&p.probe_error, MS_ENOMEM, "out of memory");
        return cli_fail(&p.probe_error);
    }
    int failures = run_checks(&p, machine, results);
    status = CLI_OK;
    if (as_json) {
        status = print_json(results, failures > 0);
    } else {
        print_lines(results);
    }
    ms_free(machine);
    return status == CLI_OK && failures > 0 ? CLI_FAILED : status;
}
