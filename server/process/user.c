#include "process/user.h"

#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <pwd.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { RECORD_BYTES = 16384 };

static int look_up(const char *name, mss_user *user, ms_error *err)
{
    struct passwd record, *found = NULL;
    char *text = ms_malloc(RECORD_BYTES);
    if (text == NULL) {
        return ms_fail(err, MS_ENOMEM, "--user: out of memory");
    }
    int failed = getpwnam_r(name, &record, text, RECORD_BYTES, &found);
    if (found != NULL) {
        *user = (mss_user){found->pw_uid, found->pw_gid};
    }
    ms_free(text);
    return found != NULL ? MS_OK
           : failed != 0 ? ms_fail_errno(err, MS_ESYSTEM, failed, "--user %s", name)
                         : ms_fail(err, MS_ECONFIG, "--user %s: there is no such user", name);
}

int mss_user_find(const char *name, mss_user *user, ms_error *err)
{
    *user = (mss_user){geteuid(), getegid()};
    bool is_root = geteuid() == 0 || getuid() == 0;
    if (name == NULL) {
        return is_root ? ms_fail(err, MS_ECONFIG,
                                 "it doesn't serve as root: start it as another user, or name one by --user, such as "
                                 "nobody")
                       : MS_OK;
    }
    int rc = look_up(name, user, err);
    return rc == MS_OK && !is_root && user->user != geteuid()
               ? ms_fail(err, MS_ECONFIG, "--user %s: only root can become another user", name)
               : rc;
}

static int drop_capabilities(void)
{
    struct __user_cap_header_struct whose = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {{0}};
    (void)prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    return (int)syscall(SYS_capset, &whose, none);
}

static bool has_capabilities(void)
{
    struct __user_cap_header_struct whose = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct held[_LINUX_CAPABILITY_U32S_3];
    bool is_told = syscall(SYS_capget, &whose, held) == 0;
    return !is_told || (held[0].permitted | held[1].permitted | held[0].effective | held[1].effective) != 0;
}

/* Tries it: that is what someone who has taken the process over would do. */
static bool can_go_back(const mss_user *user)
{
    bool has_root = user->user != 0 && (setuid(0) == 0 || seteuid(0) == 0 || setreuid(0, 0) == 0);
    bool has_group = user->group != 0 && user->user != 0 && (setgid(0) == 0 || setegid(0) == 0);
    bool has_groups = getgroups(0, NULL) != 0 || setgroups(0, NULL) == 0;
    return has_root || has_group || has_groups || has_capabilities() || geteuid() != user->user ||
           getuid() != user->user || getegid() != user->group || getgid() != user->group;
}

int mss_user_become(const mss_user *user, ms_error *err)
{
    if (geteuid() != 0 && getuid() != 0) {
        return MS_OK;
    }
    if (setgroups(0, NULL) != 0 || setresgid(user->group, user->group, user->group) != 0 ||
        setresuid(user->user, user->user, user->user) != 0 || drop_capabilities() != 0) {
        return ms_fail_errno(err, MS_ESYSTEM, errno, "--user: the rights of root can't be given up");
    }
#ifdef __SANITIZE_ADDRESS__ /* which looks into its own process for leaks */
    (void)prctl(PR_SET_DUMPABLE, 1);
#endif
    return can_go_back(user) ? ms_fail(err, MS_ESYSTEM, "--user: the rights of root can be had back") : MS_OK;
}
