/*
 * cgroup.h on Linux: finds the hierarchy in mountinfo, the group in
 * /proc/self/cgroup, and takes the smallest limit from there to the top.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os/cgroup.h"
#include "base/os/file.h"
#include "base/os/procfs.h"
#include "base/units.h"

enum {
    MOUNTINFO_MAX_BYTES = 16 << 20,
    PATH_BYTES = 1024,
    GROUP_DEPTH_MAX = 64,
};

/* Version 1 writes "no limit" as the largest page-aligned signed number. Numbers near it are not limits. */
#define NO_LIMIT_FROM_BYTES (UINT64_C(1) << 60)

/* The differences between the two versions of the interface. */
typedef struct group_interface {
    unsigned version;
    const char *filesystem; /* in mountinfo */
    const char *controller; /* version 1: which hierarchy */
    const char *limit_files[2];
    const char *usage_file;
    const char *cache_key; /* in memory.stat, children included */
} group_interface;

static const group_interface interfaces[] = {
    {1, "cgroup", "memory", {"memory.limit_in_bytes", NULL}, "memory.usage_in_bytes", "total_cache"},
    /* memory.high stalls processes beyond it instead of killing them: it counts as a limit too. */
    {2, "cgroup2", "memory", {"memory.max", "memory.high"}, "memory.current", "file"},
};

static const group_interface cpu_interfaces[] = {
    {.version = 1, .filesystem = "cgroup", .controller = "cpu"},
    {.version = 2, .filesystem = "cgroup2", .controller = "cpu"},
};

/* A hierarchy as this process sees it. */
typedef struct group_mount {
    char point[PATH_BYTES]; /* mount point */
    char top[PATH_BYTES];   /* the group mounted there */
} group_mount;

/* ---- small parsers ------------------------------------------------------ */

/* Copies a field of mountinfo, which writes space, tab, newline and backslash as
 * \ and three octal digits. False if it does not fit. */
static bool copy_unescaped(const char *from, size_t length, char *out, size_t size)
{
    size_t used = 0;
    for (size_t i = 0; i < length; i++) {
        char c = from[i];
        if (c == '\\' && i + 3 < length && from[i + 1] >= '0' && from[i + 1] <= '3') {
            c = (char)((from[i + 1] - '0') * 64 + (from[i + 2] - '0') * 8 + (from[i + 3] - '0'));
            i += 3;
        }
        if (used + 1 >= size) {
            return false;
        }
        out[used++] = c;
    }
    out[used] = '\0';
    return true;
}

/* Field number `index` (from 0) of a line of fields separated by spaces. */
static bool find_field(const char *line, size_t line_length, size_t number, const char **field, size_t *length)
{
    const char *end = line + line_length;
    for (size_t i = 0; line < end; i++) {
        const char *space = memchr(line, ' ', (size_t)(end - line));
        const char *stop = space != NULL ? space : end;
        if (i == number) {
            *field = line;
            *length = (size_t)(stop - line);
            return true;
        }
        line = stop + 1;
    }
    return false;
}

static bool list_has(const char *list, size_t length, const char *wanted)
{
    size_t wanted_length = strlen(wanted);
    const char *end = list + length;
    while (list < end) {
        const char *comma = memchr(list, ',', (size_t)(end - list));
        const char *stop = comma != NULL ? comma : end;
        if ((size_t)(stop - list) == wanted_length && memcmp(list, wanted, wanted_length) == 0) {
            return true;
        }
        list = stop + 1;
    }
    return false;
}

static const char *find_separator(const char *line, size_t length)
{
    return memmem(line, length, " - ", 3);
}

/* One line of mountinfo: "id parent dev root point options ... - type source
 * options". True if the line mounts the hierarchy of this interface. */
static bool parse_mount(const char *line, size_t length, const group_interface *interface, group_mount *out)
{
    const char *separator = find_separator(line, length);
    if (separator == NULL) {
        return false;
    }
    const char *tail = separator + 3;
    size_t tail_length = length - (size_t)(tail - line);
    const char *field;
    size_t field_length;
    if (!find_field(tail, tail_length, 0, &field, &field_length) || field_length != strlen(interface->filesystem) ||
        memcmp(field, interface->filesystem, field_length) != 0) {
        return false;
    }
    if (interface->version == 1 && (!find_field(tail, tail_length, 2, &field, &field_length) ||
                                    !list_has(field, field_length, interface->controller))) {
        return false;
    }
    return find_field(line, length, 3, &field, &field_length) &&
           copy_unescaped(field, field_length, out->top, sizeof out->top) &&
           find_field(line, length, 4, &field, &field_length) &&
           copy_unescaped(field, field_length, out->point, sizeof out->point);
}

/* One line of /proc/self/cgroup: "4:memory:/path" (1), "0::/path" (2). */
static bool parse_group(const char *line, size_t length, const group_interface *interface, char *out, size_t size)
{
    const char *first = memchr(line, ':', length);
    if (first == NULL) {
        return false;
    }
    const char *names = first + 1;
    const char *second = memchr(names, ':', length - (size_t)(names - line));
    if (second == NULL) {
        return false;
    }
    size_t names_length = (size_t)(second - names);
    bool matches = interface->version == 1 ? list_has(names, names_length, interface->controller)
                                           : names_length == 0 && first - line == 1 && *line == '0';
    size_t path_length = length - (size_t)(second + 1 - line);
    if (!matches || path_length >= size) {
        return false;
    }
    memcpy(out, second + 1, path_length);
    out[path_length] = '\0';
    return true;
}

/* ---- finding the group -------------------------------------------------- */

static bool find_mount(const char *mountinfo, const group_interface *interface, group_mount *out)
{
    for (const char *line = mountinfo; *line != '\0';) {
        size_t length = strcspn(line, "\n");
        if (parse_mount(line, length, interface, out)) {
            return true;
        }
        line += length + (line[length] == '\n');
    }
    return false;
}

static bool find_group(const char *groups, const group_interface *interface, char *out, size_t size)
{
    for (const char *line = groups; *line != '\0';) {
        size_t length = strcspn(line, "\n");
        if (parse_group(line, length, interface, out, size)) {
            return true;
        }
        line += length + (line[length] == '\n');
    }
    return false;
}

/* The group's path below the mount point. Inside a container the mount may show only
 * a part of the hierarchy (`top`); a group outside that part counts as its top. */
static const char *path_below(const group_mount *mount, const char *group)
{
    size_t top_length = strlen(mount->top);
    if (strcmp(mount->top, "/") == 0) {
        return strstr(group, "..") != NULL ? "" : group;
    }
    if (strncmp(group, mount->top, top_length) == 0 && (group[top_length] == '/' || group[top_length] == '\0')) {
        return group + top_length;
    }
    return "";
}

/* ---- reading the limits ------------------------------------------------- */

/* UINT64_MAX for "max", for huge numbers and for a missing file. */
static uint64_t read_bytes(const char *directory, const char *file)
{
    char path[PATH_MAX];
    char text[64];
    snprintf(path, sizeof path, "%s/%s", directory, file);
    if (!ms__file_read_small(path, text, sizeof text)) {
        return UINT64_MAX;
    }
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (end == text || errno != 0 || value >= NO_LIMIT_FROM_BYTES) {
        return UINT64_MAX;
    }
    return value;
}

/* memory.stat has lines "key number". */
static uint64_t read_cache_bytes(const char *directory, const char *key)
{
    char path[PATH_MAX];
    char text[8192];
    char line_start[64];
    snprintf(path, sizeof path, "%s/memory.stat", directory);
    if (!ms__file_read_small(path, text, sizeof text)) {
        return 0;
    }
    snprintf(line_start, sizeof line_start, "\n%s ", key);
    const char *found =
        strncmp(text, line_start + 1, strlen(line_start + 1)) == 0 ? text - 1 : strstr(text, line_start);
    return found != NULL ? strtoull(found + strlen(line_start), NULL, 10) : 0;
}

static uint64_t read_limit(const char *directory, const group_interface *interface, const char **file)
{
    uint64_t limit = UINT64_MAX;
    for (size_t i = 0; i < 2 && interface->limit_files[i] != NULL; i++) {
        uint64_t bytes = read_bytes(directory, interface->limit_files[i]);
        if (bytes < limit) {
            limit = bytes;
            *file = interface->limit_files[i];
        }
    }
    return limit;
}

static void consider_group(const char *directory, const group_interface *interface, void *result)
{
    ms__cgroup_memory *best = result;
    const char *file = "";
    uint64_t limit = read_limit(directory, interface, &file);
    if (limit >= best->limit_bytes) {
        return;
    }
    uint64_t usage = read_bytes(directory, interface->usage_file);
    best->limit_bytes = limit;
    best->usage_bytes = usage != UINT64_MAX ? usage : 0;
    best->cache_bytes = read_cache_bytes(directory, interface->cache_key);
    best->version = interface->version;
    best->limit_file = file;
    snprintf(best->directory, sizeof best->directory, "%s", directory);
}

/* In version 1 a parent without memory.use_hierarchy does not limit children. */
static bool parent_binds(const char *directory, const group_interface *interface)
{
    return interface->version != 1 || read_bytes(directory, "memory.use_hierarchy") != 0;
}

/* Called by walk_up() for every group; `result` is the caller's. */
typedef void (*group_visitor)(const char *directory, const group_interface *interface, void *result);

static void walk_up(const char *root, const group_interface *interface, const group_mount *mount, const char *group,
                    group_visitor visit, void *result)
{
    char directory[PATH_MAX];
    size_t mount_length = strlen(root) + strlen(mount->point);
    int length = snprintf(directory, sizeof directory, "%s%s%s", root, mount->point, path_below(mount, group));
    if (length < 0 || (size_t)length >= sizeof directory) {
        return;
    }
    for (int depth = 0; depth < GROUP_DEPTH_MAX; depth++) {
        size_t used = strlen(directory);
        while (used > mount_length && directory[used - 1] == '/') {
            directory[--used] = '\0';
        }
        if (depth > 0 && !parent_binds(directory, interface)) {
            return;
        }
        visit(directory, interface, result);
        if (used <= mount_length) {
            return;
        }
        *strrchr(directory, '/') = '\0';
    }
}

/* Visits the groups of this process in the hierarchies of `known`, bottom up. */
static void visit_groups(const char *root, const group_interface *known, size_t count, group_visitor visit,
                         void *result)
{
    char path[PATH_MAX];
    char groups[8192];
    char *mountinfo = NULL;
    size_t length = 0;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    if (!ms__file_read_small(path, groups, sizeof groups)) {
        return;
    }
    snprintf(path, sizeof path, "%s/proc/self/mountinfo", root);
    if (ms__file_read_text(path, MOUNTINFO_MAX_BYTES, &mountinfo, &length, NULL) != MS_OK) {
        return;
    }
    for (size_t i = 0; i < count; i++) {
        group_mount mount;
        char group[PATH_BYTES];
        if (find_mount(mountinfo, &known[i], &mount) && find_group(groups, &known[i], group, sizeof group)) {
            walk_up(root, &known[i], &mount, group, visit, result);
        }
    }
    ms_free(mountinfo);
}

void ms__cgroup_memory_read(const char *root, ms__cgroup_memory *out)
{
    *out = (ms__cgroup_memory){.limit_bytes = UINT64_MAX, .limit_file = ""};
    visit_groups(root, interfaces, sizeof interfaces / sizeof interfaces[0], consider_group, out);
}

/* ---- CPU time ----------------------------------------------------------- */

static uint64_t read_number(const char *directory, const char *file)
{
    uint64_t value = read_bytes(directory, file); /* "-1", no quota, becomes a huge number */
    return value != UINT64_MAX ? value : 0;
}

/* Version 2 writes "quota period" or "max period" in microseconds. */
static void read_quota(const char *directory, unsigned version, uint64_t *quota, uint64_t *period)
{
    char path[PATH_MAX];
    char text[64];
    if (version == 1) {
        *quota = read_number(directory, "cpu.cfs_quota_us");
        *period = read_number(directory, "cpu.cfs_period_us");
        return;
    }
    *quota = *period = 0;
    snprintf(path, sizeof path, "%s/cpu.max", directory);
    if (ms__file_read_small(path, text, sizeof text) && strncmp(text, "max", 3) != 0) {
        char *end;
        *quota = strtoull(text, &end, 10);
        *period = strtoull(end, NULL, 10);
    }
}

static void consider_quota(const char *directory, const group_interface *interface, void *result)
{
    uint32_t *best = result;
    uint64_t quota;
    uint64_t period;
    read_quota(directory, interface->version, &quota, &period);
    if (quota == 0 || period == 0) {
        return;
    }
    uint64_t cpus = ms__min_u64(ms__div_up(quota, period), UINT32_MAX);
    if (*best == 0 || cpus < *best) {
        *best = (uint32_t)cpus;
    }
}

uint64_t ms__memory_room_bytes(const char *root)
{
    ms__machine_memory machine;
    ms__cgroup_memory group;
    if (ms__machine_memory_read(root, &machine, NULL) != MS_OK) {
        return 0;
    }
    ms__cgroup_memory_read(root, &group);
    uint64_t held_bytes = ms__sub_sat(group.usage_bytes, group.cache_bytes);
    uint64_t left_bytes = group.limit_bytes == UINT64_MAX ? UINT64_MAX : ms__sub_sat(group.limit_bytes, held_bytes);
    return ms__min_u64(machine.available_bytes, left_bytes);
}

uint32_t ms__cgroup_cpu_quota(const char *root)
{
    uint32_t cpus = 0;
    visit_groups(root, cpu_interfaces, sizeof cpu_interfaces / sizeof cpu_interfaces[0], consider_quota, &cpus);
    return cpus;
}
