#include "process/process.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <linux/landlock.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FILES_MOST = 16384 };

/* ---- what every kernel has ---------------------------------------------------------- */

/* Nobody reads passwords from a core file, or this process's memory from another of the same user. */
void mss_process_close(void)
{
    struct rlimit none = {0, 0}, files;
    umask(077);
#ifndef __SANITIZE_ADDRESS__ /* which looks into its own process for leaks */
    (void)prctl(PR_SET_DUMPABLE, 0);
#endif
    (void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    (void)setrlimit(RLIMIT_CORE, &none);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < FILES_MOST) {
        files.rlim_cur = files.rlim_max < FILES_MOST ? files.rlim_max : FILES_MOST;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
}

/* ---- Landlock ------------------------------------------------------------------------ */

/* Of newer headers than Debian 12 has. */
#define ACCESS_FS_TRUNCATE ((uint64_t)1 << 14) /* level 3 */
#define ACCESS_NET_CONNECT_TCP ((uint64_t)1 << 1) /* level 4 */
enum { RULE_NET_PORT = 2, NETWORK_LEVEL = 4 };

#define ACCESS_WRITE \
    (LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_DIR | LANDLOCK_ACCESS_FS_REMOVE_FILE | \
     LANDLOCK_ACCESS_FS_MAKE_CHAR | LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG | \
     LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_MAKE_FIFO | LANDLOCK_ACCESS_FS_MAKE_BLOCK | \
     LANDLOCK_ACCESS_FS_MAKE_SYM)

/* As the kernel has it from level 4 on; older ones take the first member alone. */
typedef struct ruleset {
    uint64_t files, network;
} ruleset;

/* The kernel's struct landlock_net_port_attr. */
typedef struct port_rule {
    uint64_t allowed, port;
} port_rule;

static int allow(int rules, const char *path, uint64_t access, ms_error *err)
{
    struct landlock_path_beneath_attr rule = {.allowed_access = access};
    rule.parent_fd = open(path, O_PATH | O_CLOEXEC);
    int rc = rule.parent_fd >= 0 && syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) == 0
                 ? MS_OK
                 : ms_fail_errno(err, MS_ESYSTEM, errno, "landlock: %s", path);
    if (rule.parent_fd >= 0) {
        close(rule.parent_fd);
    }
    return rc;
}

static int allow_ports(int rules, const uint16_t *ports, size_t count, ms_error *err)
{
    for (size_t i = 0; i < count; i++) {
        port_rule rule = {ACCESS_NET_CONNECT_TCP, ports[i]};
        if (syscall(SYS_landlock_add_rule, rules, RULE_NET_PORT, &rule, 0) != 0) {
            return ms_fail_errno(err, MS_ESYSTEM, errno, "landlock: port %u", ports[i]);
        }
    }
    return MS_OK;
}

/* The loader that the kernel starts this program with; NULL for a static one. */
static const char *loader_path(void)
{
    const ElfW(Phdr) *headers = (const void *)getauxval(AT_PHDR); /* NOLINT: an address by the kernel's word */
    size_t count = getauxval(AT_PHNUM);
    ElfW(Addr) base = 0;
    for (size_t i = 0; headers != NULL && i < count; i++) {
        if (headers[i].p_type == PT_PHDR) {
            base = (ElfW(Addr))headers - headers[i].p_vaddr;
        }
    }
    for (size_t i = 0; headers != NULL && i < count; i++) {
        if (headers[i].p_type == PT_INTERP) {
            return (const char *)(base + headers[i].p_vaddr); /* NOLINT */
        }
    }
    return NULL;
}

static int fill(int rules, const mss_confines *to, uint64_t writes, ms_error *err)
{
    const char *loader = loader_path();
    int rc = to->data != NULL ? allow(rules, to->data, writes, err) : MS_OK;
    if (rc == MS_OK && to->above_data != NULL) {
        rc = allow(rules, to->above_data, LANDLOCK_ACCESS_FS_REMOVE_DIR, err);
    }
    if (rc == MS_OK) {
        rc = allow(rules, "/proc/self/exe", LANDLOCK_ACCESS_FS_EXECUTE, err);
    }
    if (rc == MS_OK && loader != NULL) {
        rc = allow(rules, loader, LANDLOCK_ACCESS_FS_EXECUTE, err);
    }
    if (rc == MS_OK && syscall(SYS_landlock_restrict_self, rules, 0) != 0) {
        rc = ms_fail_errno(err, MS_ESYSTEM, errno, "landlock");
    }
    return rc;
}

int mss_process_confine(const mss_confines *to, int *level, ms_error *err)
{
    long told = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    *level = told > 0 ? (int)told : 0;
    if (*level == 0) {
        return MS_OK;
    }
    uint64_t writes = ACCESS_WRITE | (*level >= 3 ? ACCESS_FS_TRUNCATE : 0);
    ruleset handled = {writes | LANDLOCK_ACCESS_FS_EXECUTE, ACCESS_NET_CONNECT_TCP};
    size_t size = *level >= NETWORK_LEVEL ? sizeof handled : sizeof handled.files;
    int rules = (int)syscall(SYS_landlock_create_ruleset, &handled, size, 0);
    if (rules < 0) {
        return ms_fail_errno(err, MS_ESYSTEM, errno, "landlock");
    }
    int rc = *level >= NETWORK_LEVEL ? allow_ports(rules, to->ports, to->port_count, err) : MS_OK;
    if (rc == MS_OK) {
        rc = fill(rules, to, writes, err);
    }
    close(rules);
    return rc;
}

void mss_process_cut_off(void)
{
    ruleset handled = {0, ACCESS_NET_CONNECT_TCP};
    int rules = (int)syscall(SYS_landlock_create_ruleset, &handled, sizeof handled, 0);
    if (rules >= 0) {
        (void)syscall(SYS_landlock_restrict_self, rules, 0);
        close(rules);
    }
}
