/*
 * Finds the processors and the memory of this machine within affinity, control groups and resource limits. Called by
 * hardware.c only.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/os/cgroup.h"
#include "base/os/file.h"
#include "base/os/procfs.h"
#include "base/units.h"
#include "hardware/isa.h"
#include "hardware/probe.h"

enum { CPU_SET_MOST = 1 << 16 };

/* ---- processors --------------------------------------------------------- */

/* Copies the text after "key<blanks>: " at the start of a line. */
static bool copy_value(const char *text, const char *key, char *out, size_t size)
{
    size_t key_length = strlen(key);
    for (const char *line = text; line != NULL && *line != '\0';) {
        const char *colon = line + key_length;
        if (strncmp(line, key, key_length) == 0) {
            colon += strspn(colon, " \t");
            if (*colon == ':') {
                const char *value = colon + 1 + strspn(colon + 1, " \t");
                snprintf(out, size, "%.*s", (int)strcspn(value, "\n"), value);
                return true;
            }
        }
        line = strchr(line, '\n');
        line = line != NULL ? line + 1 : NULL;
    }
    return false;
}

void ms__cpu_name(const char *cpuinfo, char *name, size_t size)
{
    char maker[64];
    char part[64];
    if (copy_value(cpuinfo, "model name", name, size) || copy_value(cpuinfo, "cpu", name, size)) {
        return;
    }
    /* ARM kernels give numbers instead of a name. */
    if (copy_value(cpuinfo, "CPU implementer", maker, sizeof maker) &&
        copy_value(cpuinfo, "CPU part", part, sizeof part)) {
        snprintf(name, size, "ARM implementer %s part %s", maker, part);
        return;
    }
    name[0] = '\0';
}

/* The number of CPUs that this thread may run on; the set grows until the kernel's fits. */
static uint32_t count_affinity(void)
{
    for (int cpus = 1024; cpus <= CPU_SET_MOST; cpus *= 2) {
        size_t bytes = CPU_ALLOC_SIZE(cpus);
        cpu_set_t *set = ms_calloc(1, bytes);
        if (set == NULL) {
            break;
        }
        int count = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
        ms_free(set);
        if (count > 0) {
            return (uint32_t)count;
        }
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint32_t)ms__min_u64((uint64_t)online, CPU_SET_MOST) : 1;
}

void ms__probe_cpu(ms_cpu *cpu)
{
    char text[4096] = "";
    struct utsname system;
    ms__file_read_small("/proc/cpuinfo", text, sizeof text);
    ms__cpu_name(text, cpu->name, sizeof cpu->name);
    if (cpu->name[0] == '\0' && uname(&system) == 0) {
        snprintf(cpu->name, sizeof cpu->name, "%s", system.machine);
    }
    uint32_t quota = ms__cgroup_cpu_quota("");
    cpu->usable_cpus = count_affinity();
    if (quota > 0 && quota < cpu->usable_cpus) {
        cpu->usable_cpus = quota;
    }
    cpu->isa = ms__isa_detect();
}

/* ---- memory ------------------------------------------------------------- */

int ms__probe_ram(ms_ram *ram, ms_error *err)
{
    ms__machine_memory machine;
    ms__cgroup_memory group;
    int rc = ms__machine_memory_read("", &machine, err);
    if (rc != MS_OK) {
        return rc;
    }
    ms__cgroup_memory_read("", &group);
    ram->total_bytes = machine.total_bytes;
    ram->available_bytes = machine.available_bytes;
    ram->limit_bytes = group.limit_bytes;
    ram->memlock_bytes = ms__memlock_limit_bytes();
    ram->limit_source[0] = '\0';
    if (group.limit_bytes != UINT64_MAX) {
        snprintf(ram->limit_source, sizeof ram->limit_source, "%s/%s", group.directory, group.limit_file);
    }
    return MS_OK;
}
