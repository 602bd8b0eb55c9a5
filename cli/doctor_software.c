/*
 * The checks of `memscale doctor` on software: versions, Python packages, control groups, and conflicting settings of
 * the environment.
 */
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <gnu/libc-version.h>

#include "base/os/file.h"
#include "device/device.h"
#include "doctor.h"

void doctor_check_versions(const patient *p, check_result *result)
{
    struct utsname system;
    (void)p;
    doctor_say(result, "memscale %s", ms_version());
    if (uname(&system) == 0) {
        doctor_say(result, ", %s %s %s", system.sysname, system.release, system.machine);
    }
    doctor_say(result, ", glibc %s", gnu_get_libc_version());
}

/* ---- Python packages ------------------------------------------------------------ */

/* The version in ".../torch-2.13.0.dist-info". */
static bool version_of(const char *site, const char *package, char *version, size_t room)
{
    char pattern[MS_PATH_MAX + 64];
    glob_t found;
    bool is_there = false;
    snprintf(pattern, sizeof pattern, "%s/%s-[0-9]*.dist-info", site, package);
    if (glob(pattern, 0, NULL, &found) == 0) {
        const char *name = strrchr(found.gl_pathv[0], '/') + 1 + strlen(package) + 1;
        snprintf(version, room, "%.*s", (int)(strlen(name) - strlen(".dist-info")), name);
        is_there = true;
    }
    globfree(&found);
    return is_there;
}

/* The folder of packages beside this program, or that of the active environment. */
static bool find_site(char *site, size_t room)
{
    char program[MS_PATH_MAX] = "", pattern[MS_PATH_MAX + 64];
    const char *active = getenv("VIRTUAL_ENV");
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    char *slash = length > 0 ? strrchr(program, '/') : NULL;
    if (slash != NULL) {
        *slash = '\0';
    }
    for (int i = 0; i < 2; i++) {
        glob_t found;
        const char *base = i == 0 ? program : active;
        if (base == NULL || base[0] == '\0') {
            continue;
        }
        snprintf(pattern, sizeof pattern, "%s%s/lib/python3.*/site-packages", base, i == 0 ? "/.." : "");
        bool is_there = glob(pattern, 0, NULL, &found) == 0;
        if (is_there) {
            snprintf(site, room, "%s", found.gl_pathv[0]);
        }
        globfree(&found);
        if (is_there) {
            return true;
        }
    }
    return false;
}

void doctor_check_packages(const patient *p, check_result *result)
{
    static const char *const names[] = {"torch", "transformers", "accelerate", "lightning", "prometheus_client"};
    char site[MS_PATH_MAX], version[128];
    (void)p;
    if (!find_site(site, sizeof site)) {
        doctor_say(result, "no Python packages beside this program or in an active environment");
        doctor_advise(result, CHECK_WARN,
                      "plans can be made from saved graphs; to train, install memscale beside PyTorch");
        return;
    }
    bool has_torch = false, has_any = false;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (version_of(site, names[i], version, sizeof version)) {
            doctor_say(result, "%s%s %s", has_any ? ", " : "", names[i], version);
            has_any = true;
            has_torch = has_torch || i == 0;
        }
    }
    if (!has_torch) {
        doctor_say(result, "%sno torch in %.200s", has_any ? "; " : "", site);
        doctor_advise(result, CHECK_WARN, "to train, install PyTorch there: https://pytorch.org/get-started");
    }
}

/* ---- control groups ---------------------------------------------------------------- */

void doctor_check_cgroup(const patient *p, check_result *result)
{
    const bool is_v2 = access("/sys/fs/cgroup/cgroup.controllers", R_OK) == 0;
    const char *root = is_v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    if (access(root, R_OK) != 0) {
        doctor_say(result, "no memory controller is mounted");
        doctor_advise(result, CHECK_WARN, "limits of a container, if any, can't be seen; name a budget");
        return;
    }
    doctor_say(result, "version %d", is_v2 ? 2 : 1);
    if (p->machine->ram.limit_bytes == UINT64_MAX) {
        doctor_say(result, ", no limit binds");
    } else {
        doctor_say(result, ", the limit is %s", p->machine->ram.limit_source);
    }
    doctor_say(result, access(root, W_OK) == 0 ? "; the tuner's trials get groups of their own"
                                               : "; the tuner's trials are limited by resource limits");
}

/* ---- conflicts --------------------------------------------------------------------- */

static void check_conflict(const ms__device_conflict *conflict, check_result *result)
{
    const char *value = getenv(conflict->variable);
    if (value != NULL && value[0] != '\0' && strstr(value, conflict->part) != NULL) {
        doctor_say(result, "%s%s: %s", result->text[0] != '\0' ? "; " : "", conflict->variable, conflict->why);
        doctor_advise(result, CHECK_WARN, "unset these for training, unless they are intended");
    }
}

void doctor_check_conflicts(const patient *p, check_result *result)
{
    (void)p;
    for (uint32_t i = 0; i < MS_DEVICE_KIND_COUNT; i++) {
        const ms__device_kind *kind = ms__device_kinds[i];
        for (uint32_t k = 0; k < kind->conflict_count; k++) {
            check_conflict(&kind->conflicts[k], result);
        }
    }
    if (result->text[0] == '\0') {
        doctor_say(result, "no setting of the environment conflicts; hooks of other libraries on a model "
                           "are found by wrap()");
    }
}
