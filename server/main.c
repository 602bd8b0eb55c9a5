/*
 * memscale-server: the command line. What it does is in the rooms; see README.md.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/jobs.h"
#include "api/plan_worker.h"
#include "auth/identity.h"
#include "auth/totp.h"
#include "base/json.h"
#include "dispatch.h"
#include "local/local.h"
#include "log/log.h"
#include "pages/pages.h"
#include "process/filter.h"
#include "process/process.h"
#include "process/user.h"
#include "routes.h"
#include "store/audit.h"
#include "store/statements.h"

enum { EXIT_WRONG = 2, PATH_BYTES = 4096, PORTS_MOST = 16 };
#define QUOTA_BYTES ((uint64_t)10 * 1000 * 1000 * 1000)

static const char help[] =
    "Usage: memscale-server --data DIR|--database URL [--listen ADDRESS] [--port N]\n"
    "                       [--url https://HOST] [--trust-proxy RANGE]... [--trust-cloudflare FILE]\n"
    "                       [--limits PERCENT] [--team-quota BYTES] [--user NAME]\n"
    "       memscale-server backup --data DIR FILE\n"
    "       memscale-server restore --check FILE|--database URL\n"
    "       memscale-server restore --data DIR FILE\n"
    "       memscale-server telemetry --data DIR|--database URL\n"
    "       memscale-server dashboard [FOLDER] [--port N]\n"
    "       memscale-server routes\n"
    "\n"
    "Keeps the runs of memscale's users in one database and shows them. The first start prints a\n"
    "link that works once and makes the first owner.\n"
    "\n"
    "  --data DIR            the directory of a database in one file; made if it is missing\n"
    "  --database URL        a PostgreSQL database, postgresql://USER@HOST/NAME, which several\n"
    "                        servers may share; its password is in PGPASSFILE or PGPASSWORD\n"
    "  --listen ADDRESS      numeric address, 127.0.0.1 if not given\n"
    "  --port N              8321 if not given; 0 takes one that is free\n"
    "  --url https://HOST    what browsers call this server, behind a proxy that speaks TLS\n"
    "  --trust-proxy RANGE   an address or 192.0.2.0/24, whose X-Forwarded-For is believed; may be\n"
    "                        given several times\n"
    "  --trust-cloudflare FILE  ranges, one a line, whose CF-Connecting-IP is believed\n"
    "  --limits PERCENT      multiplies every limit of requests per minute (100)\n"
    "  --team-quota BYTES    of steps that a team may store (10000000000)\n"
    "  --user NAME           whom a server that root starts becomes, such as nobody\n"
    "  backup FILE           a consistent copy, while the server runs\n"
    "  restore --check FILE  whether a copy is whole: pages, references, schema, audit\n"
    "  restore FILE          puts a copy, once checked, into a directory without a database\n"
    "  telemetry             prints the stored telemetry events, one a line\n"
    "  dashboard [FOLDER]    shows the runs whose logs (log_file) are below the folder, the\n"
    "                        present one if none is given, on this machine only\n"
    "  routes                the table of routes, as JSON\n";

/* The file is "" if the command line names none. */
typedef struct command_line {
    const char *command, *data, *database, *file, *user;
    bool is_check;
    mss_settings settings;
} command_line;

static int fail(const ms_error *err)
{
    fprintf(stderr, "memscale-server: %s\n", err->text);
    return EXIT_FAILURE;
}

static int usage(const char *text, const char *what)
{
    fprintf(stderr, "memscale-server: %s%s; memscale-server --help says more\n", text, what);
    return EXIT_WRONG;
}

/* ---- files ------------------------------------------------------------------- */

static int database_path(const char *data, char path[PATH_BYTES], ms_error *err)
{
    int length = snprintf(path, PATH_BYTES, "%s/memscale.db", data);
    return length < PATH_BYTES ? MS_OK : ms_fail(err, MS_EINVAL, "--data: the path is too long");
}

/* A new one is the `owner`'s; NULL: of the user that this is. */
static int make_directory(const char *data, const mss_user *owner, ms_error *err)
{
    bool is_new = mkdir(data, 0700) == 0;
    if ((!is_new && errno != EEXIST) || (is_new && owner != NULL && chown(data, owner->user, owner->group) != 0)) {
        return ms_fail_errno(err, MS_ESYSTEM, errno, "--data %s", data);
    }
    return MS_OK;
}

/* ---- what an attacker in this process can't do --------------------------------------- */

static int filter_calls(mss_stage stage, ms_error *err)
{
    bool is_filtered = false;
    int rc = mss_filter_enter(stage, &is_filtered, err);
    if (rc == MS_OK && !is_filtered) {
        mss_log_event(MS_LOG_WARNING, "no filter of system calls on this machine: every call may be made");
    }
    return rc;
}

/* Before any thread starts. */
static int confine(const mss_confines *to, ms_error *err)
{
    int level = 0;
    int rc = mss_process_confine(to, &level, err);
    if (rc == MS_OK && level == 0) {
        mss_log_event(MS_LOG_WARNING, "this kernel has no Landlock: the process is not confined to its data");
    }
    return rc == MS_OK ? filter_calls(MSS_STAGE_START, err) : rc;
}

/* Of a command that opens a database or a copy, which may be a stranger's. */
static int confine_command(ms_error *err)
{
    mss_process_close();
    return filter_calls(MSS_STAGE_SERVE, err);
}

/* ---- backup and restore ------------------------------------------------------------ */

static int backup(const command_line *line)
{
    ms_error err;
    char path[PATH_BYTES];
    mss_sql *sql = NULL;
    if (access(line->file, F_OK) == 0) {
        return usage(line->file, " is there already");
    }
    int rc = database_path(line->data, path, &err);
    if (rc == MS_OK) {
        rc = mss_sql_open(path, MSS_SQL_READ, &sql, &err);
    }
    if (rc == MS_OK) {
        rc = mss_sql_backup(sql, line->file, &err);
    }
    mss_sql_close(sql);
    return rc == MS_OK ? EXIT_SUCCESS : fail(&err);
}

static int check_place(const char *where, int64_t *audit_rows, ms_error *err)
{
    mss_sql *sql = NULL;
    int rc = mss_sql_open(where, MSS_SQL_READ, &sql, err);
    if (rc == MS_OK) {
        rc = mss_sql_check(sql, err);
    }
    if (rc == MS_OK) {
        rc = mss_audit_check(sql, audit_rows, err);
    }
    mss_sql_close(sql);
    return rc;
}

static int check_copy(const command_line *line)
{
    ms_error err;
    int64_t audit_rows = 0;
    const char *where = line->database != NULL ? line->database : line->file;
    if (check_place(where, &audit_rows, &err) != MS_OK) {
        return fail(&err);
    }
    printf("%s is whole; %lld rows of audit follow from each other\n", where, (long long)audit_rows);
    return EXIT_SUCCESS;
}

static int restore(const command_line *line)
{
    ms_error err;
    char path[PATH_BYTES];
    mss_sql *sql = NULL;
    int status = check_copy(line);
    if (status != EXIT_SUCCESS || line->is_check) {
        return status;
    }
    int rc = make_directory(line->data, NULL, &err);
    if (rc == MS_OK) {
        rc = database_path(line->data, path, &err);
    }
    if (rc == MS_OK && access(path, F_OK) == 0) {
        return usage(path, " is there already");
    }
    if (rc == MS_OK) {
        rc = mss_sql_open(line->file, MSS_SQL_READ, &sql, &err);
    }
    if (rc == MS_OK) {
        rc = mss_sql_backup(sql, path, &err);
    }
    mss_sql_close(sql);
    return rc == MS_OK ? EXIT_SUCCESS : fail(&err);
}

/* ---- telemetry ------------------------------------------------------------------ */

static int print_rows(mss_rows *rows, ms_error *err)
{
    bool has = false;
    int rc;
    while ((rc = mss_rows_next(rows, &has, err)) == MS_OK && has) {
        if (printf("%s\n", mss_rows_text(rows, 0)) < 0) {
            return ms_fail_errno(err, MS_EIO, errno, "standard output");
        }
    }
    return rc;
}

static int print_telemetry(const command_line *line)
{
    ms_error err;
    char path[PATH_BYTES];
    mss_sql *sql = NULL;
    mss_rows rows = {0};
    int rc = line->data != NULL ? database_path(line->data, path, &err) : MS_OK;
    if (rc == MS_OK) {
        rc = mss_sql_open(line->database != NULL ? line->database : path, MSS_SQL_READ, &sql, &err);
    }
    if (rc == MS_OK) {
        rc = mss_sql_query(sql, MSS_TELEMETRY_ALL, MSS_NONE, &rows, &err);
    }
    if (rc == MS_OK) {
        rc = print_rows(&rows, &err);
    }
    mss_rows_end(&rows);
    mss_sql_close(sql);
    if (rc == MS_OK && fflush(stdout) != 0) {
        rc = ms_fail_errno(&err, MS_EIO, errno, "standard output");
    }
    return rc == MS_OK ? EXIT_SUCCESS : fail(&err);
}

/* ---- serve -------------------------------------------------------------------- */

/* Where the database is, and what it asks of its server's process. */
typedef struct place {
    char path[PATH_BYTES];
    const char *where; /* the path, or the URL */
    uint16_t ports[PORTS_MOST];
    size_t port_count;
    char secret[MSS_SECRET_BYTES]; /* of the first owner's link; empty when there are accounts */
} place;

/* Makes the folder as root if this is root, and goes on as the user that owns it. */
static int find_place(const command_line *line, place *p, ms_error *err)
{
    mss_user user;
    int rc = mss_user_find(line->user, &user, err);
    if (rc == MS_OK && line->data != NULL) {
        rc = make_directory(line->data, &user, err);
    }
    if (rc == MS_OK) {
        rc = mss_user_become(&user, err);
    }
    p->where = line->database != NULL ? line->database : p->path;
    return rc == MS_OK && line->database == NULL ? database_path(line->data, p->path, err) : rc;
}

/* In one transaction: of two servers that start at once, the second one's link counts. */
static int make_first_link(mss_sql *sql, char secret[MSS_SECRET_BYTES], ms_error *err)
{
    int64_t accounts = 0;
    int rc = mss_sql_transaction(sql, MSS_BEGIN, err);
    if (rc == MS_OK) {
        rc = mss_sql_number(sql, MSS_ACCOUNT_COUNT, MSS_NONE, &accounts, err);
    }
    if (rc == MS_OK && accounts == 0) {
        rc = mss_invitation_make(sql, NULL, MSS_OWNER, NULL, secret, err);
    }
    if (rc == MS_OK) {
        rc = mss_sql_transaction(sql, MSS_COMMIT, err);
    }
    if (rc != MS_OK) {
        mss_sql_rollback(sql);
    }
    return rc;
}

static int prepare_database(place *p, ms_error *err)
{
    mss_sql *sql = NULL;
    int rc = mss_sql_open(p->where, MSS_SQL_WRITE, &sql, err);
    if (rc == MS_OK) {
        p->port_count = mss_sql_ports(sql, p->ports, PORTS_MOST);
        rc = mss_sql_migrate(sql, err);
    }
    if (rc == MS_OK) {
        rc = make_first_link(sql, p->secret, err);
    }
    mss_sql_close(sql);
    return rc;
}

static int wait_for_signal(void)
{
    sigset_t wanted;
    int number = 0;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGINT);
    sigaddset(&wanted, SIGTERM);
    sigwait(&wanted, &number);
    return number;
}

/* Before any thread starts, so that every thread inherits it. */
static void block_signals(void)
{
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGINT);
    sigaddset(&blocked, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &blocked, NULL);
    signal(SIGPIPE, SIG_IGN);
}

/* What every server here is made of. */
static void complete(mss_settings *settings, const char *database)
{
    settings->database = database;
    settings->routes = mss_routes(&settings->route_count);
    settings->problem_page = mss_page_problem;
    settings->dispatch = mss_dispatch;
}

static void remove_database(const char *directory, const char *database)
{
    static const char *const endings[] = {"", "-wal", "-shm"};
    char path[PATH_BYTES + 8];
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        snprintf(path, sizeof path, "%s%s", database, endings[i]);
        (void)unlink(path);
    }
    (void)rmdir(directory);
}

/* Serves what a thread reads from logs; the database is a cache that ends with the process. */
static int show_dashboard(command_line *line, const mss_confines *to, const char *database, ms_error *err)
{
    mss_server *server = NULL;
    mss_local *local = NULL;
    bool has_folder = line->file[0] != '\0';
    int rc = mss_local_prepare(database, &line->settings.local_account, err);
    complete(&line->settings, database);
    if (rc == MS_OK) {
        rc = confine(to, err);
    }
    if (rc == MS_OK) {
        rc = mss_server_start(&line->settings, &server, err);
    }
    if (rc == MS_OK) {
        rc = mss_local_start(has_folder ? line->file : ".", database, server, &local, err);
    }
    if (rc == MS_OK) {
        rc = filter_calls(MSS_STAGE_SERVE, err);
    }
    if (rc == MS_OK) {
        printf("The runs of %s are on %s\n", has_folder ? line->file : "this folder", mss_server_url(server));
        (void)fflush(stdout);
        (void)wait_for_signal();
    }
    mss_local_stop(local);
    mss_server_stop(server);
    return rc;
}

static int dashboard(command_line *line)
{
    ms_error err;
    char directory[PATH_BYTES], path[PATH_BYTES];
    const char *temporary = getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp";
    mss_confines to = {.data = directory, .above_data = temporary}; /* it removes the folder when it ends */
    mss_process_close();
    block_signals();
    line->settings.listen_address = "127.0.0.1";
    snprintf(directory, sizeof directory, "%s/memscale-dashboard-XXXXXX", temporary);
    if (mkdtemp(directory) == NULL) {
        (void)ms_fail_errno(&err, MS_ESYSTEM, errno, "%s", directory);
        return fail(&err);
    }
    int rc = database_path(directory, path, &err);
    if (rc == MS_OK) {
        rc = show_dashboard(line, &to, path, &err);
    }
    remove_database(directory, path);
    return rc == MS_OK ? EXIT_SUCCESS : fail(&err);
}

static void say_where(const mss_server *server, place *p)
{
    printf("memscale-server %s listens on %s\n", ms_version(), mss_server_url(server));
    if (p->secret[0] != '\0') {
        printf("The first owner signs up here, once: %s/welcome/%s\n", mss_server_url(server), p->secret);
        mss_secret_wipe(p->secret, sizeof p->secret);
    }
    (void)fflush(stdout);
}

static int serve(command_line *line)
{
    ms_error err;
    place p = {.where = ""};
    mss_server *server = NULL;
    mss_jobs *jobs = NULL;
    mss_process_close();
    block_signals();
    int rc = find_place(line, &p, &err);
    if (rc == MS_OK) {
        rc = prepare_database(&p, &err);
    }
    if (rc == MS_OK) {
        rc = confine(&(mss_confines){.data = line->data, .ports = p.ports, .port_count = p.port_count}, &err);
    }
    complete(&line->settings, p.where);
    if (rc == MS_OK) {
        rc = mss_server_start(&line->settings, &server, &err);
    }
    if (rc == MS_OK) {
        rc = mss_jobs_start(p.where, &jobs, &err);
    }
    if (rc == MS_OK) {
        rc = filter_calls(MSS_STAGE_SERVE, &err);
    }
    if (rc != MS_OK) {
        mss_jobs_stop(jobs);
        mss_server_stop(server);
        return fail(&err);
    }
    say_where(server, &p);
    mss_log_event(MS_LOG_INFO, "started, version %s", ms_version());
    int number = wait_for_signal();
    mss_jobs_stop(jobs);
    mss_server_stop(server);
    mss_log_event(MS_LOG_INFO, "stopped by signal %d", number);
    return EXIT_SUCCESS;
}

/* ---- the command line ---------------------------------------------------------------- */

static bool read_number(const char *text, uint64_t most, uint64_t *number)
{
    char *end;
    errno = 0;
    *number = strtoull(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0 && *number <= most;
}

static bool is_url(const char *text)
{
    const char *host = strstr(text, "://");
    return host != NULL && strlen(text) < 256 &&
           (strncmp(text, "https://", 8) == 0 || strncmp(text, "http://", 7) == 0) && host[3] != '\0' &&
           strpbrk(host + 3, "/?# @") == NULL;
}

/* If it says more than that the value can't be used, the reason is in `why`. */
static bool take_option(command_line *line, int option, const char *value, ms_error *why)
{
    uint64_t number = 0;
    switch (option) {
    case 'd':
        line->data = value;
        return true;
    case 'b':
        line->database = value;
        return mss_sql_is_shared_place(value);
    case 'a':
        line->settings.listen_address = value;
        return true;
    case 'p':
        line->settings.port = read_number(value, 65535, &number) ? (uint16_t)number : 0;
        return read_number(value, 65535, &number);
    case 'u':
        line->settings.public_url = value;
        return is_url(value);
    case 't':
        return mss_networks_add(&line->settings.proxies, value, strlen(value), why) == MS_OK;
    case 'f':
        return mss_networks_add_file(&line->settings.cloudflare, value, why) == MS_OK;
    case 'l':
        line->settings.limit_scale_percent = read_number(value, 1000000, &number) ? (uint32_t)number : 0;
        return line->settings.limit_scale_percent > 0;
    case 'q':
        return read_number(value, UINT64_MAX, &line->settings.team_quota_bytes);
    case 'n':
        line->user = value;
        return true;
    case 'c':
        line->is_check = true;
        return true;
    default:
        return false;
    }
}

static const struct option options[] = {
    {"data", required_argument, NULL, 'd'},
    {"database", required_argument, NULL, 'b'},
    {"listen", required_argument, NULL, 'a'},
    {"port", required_argument, NULL, 'p'},
    {"url", required_argument, NULL, 'u'},
    {"trust-proxy", required_argument, NULL, 't'},
    {"limits", required_argument, NULL, 'l'},
    {"team-quota", required_argument, NULL, 'q'},
    {"trust-cloudflare", required_argument, NULL, 'f'},
    {"user", required_argument, NULL, 'n'},
    {"check", no_argument, NULL, 'c'},
    {NULL, 0, NULL, 0},
};

static bool is_command(const command_line *line, const char *name)
{
    return line->command != NULL && strcmp(line->command, name) == 0;
}

/* PostgreSQL has programs of its own for copies. */
static int check_database_option(const command_line *line)
{
    ms_error err;
    if (mss_sql_accepts(line->database, &err) != MS_OK) { /* first: no message repeats a password */
        return fail(&err);
    }
    if (is_command(line, "backup")) {
        return usage("backup copies a file; for PostgreSQL run: pg_dump --format=custom --file=COPY ", line->database);
    }
    bool is_restore = is_command(line, "restore");
    if (is_restore && !line->is_check) {
        return usage("restore copies a file; for PostgreSQL run: pg_restore COPY --dbname=", line->database);
    }
    if (line->command != NULL && !is_restore && !is_command(line, "telemetry")) {
        return usage("--database", " is for servers, checks and telemetry");
    }
    return line->file[0] != '\0' ? usage(line->file, " is one argument too many") : 0;
}

/* A file, and a directory with a database if the command needs one. */
static int check_command_line(const command_line *line)
{
    if (line->database != NULL) {
        return check_database_option(line);
    }
    bool is_dashboard = is_command(line, "dashboard"), is_routes = is_command(line, "routes");
    bool takes_none = line->command == NULL || is_routes || is_command(line, "telemetry");
    bool has_file = line->file[0] != '\0';
    if (!is_dashboard && has_file == takes_none) {
        return usage(has_file ? line->file : "FILE", has_file ? " is one argument too many" : " is missing");
    }
    bool needs_data = !is_dashboard && !is_routes && !line->is_check;
    return needs_data && line->data == NULL ? usage("--data DIR", " is missing") : 0;
}

/* 0, or the status to exit with. */
static int read_command_line(int argc, char **argv, command_line *line)
{
    int option;
    ms_error why = {0};
    if (argc > 1 && argv[1][0] != '-') {
        line->command = argv[1];
        argc--;
        argv++;
    }
    opterr = 0;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (!take_option(line, option, optarg, &why)) {
            return why.text[0] != '\0' ? usage(why.text, "") : usage("can't use ", argv[optind - 1]);
        }
    }
    line->file = optind < argc ? argv[optind++] : "";
    if (optind < argc) {
        return usage(argv[optind], " is one argument too many");
    }
    return check_command_line(line);
}

static int print_routes(void)
{
    char *text = mss_routes_json();
    int rc = text != NULL && fputs(text, stdout) >= 0 ? EXIT_SUCCESS : EXIT_FAILURE;
    ms_free(text);
    return rc;
}

static int run(command_line *line)
{
    ms_error err;
    if (line->command == NULL) {
        return serve(line);
    }
    if (is_command(line, "dashboard")) {
        return dashboard(line);
    }
    if (confine_command(&err) != MS_OK) {
        return fail(&err);
    }
    if (is_command(line, "backup")) {
        return backup(line);
    }
    if (is_command(line, "restore")) {
        return restore(line);
    }
    if (is_command(line, "telemetry")) {
        return print_telemetry(line);
    }
    return is_command(line, "routes") ? print_routes() : usage("unknown command ", line->command);
}

int main(int argc, char **argv)
{
    ms_error err;
    ms__json_writer writer = {0};
    json_decref(ms__json_new(&writer)); /* from now on jansson's memory is ours */
    if (argc == 2 && (strcmp(argv[1], "plan-worker") == 0 || strcmp(argv[1], "frontier-worker") == 0)) {
        return mss_plan_worker(argv[1][0] == 'f');
    }
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        return fputs(help, stdout) >= 0 ? EXIT_SUCCESS : EXIT_FAILURE;
    }
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        printf("memscale-server %s\n", ms_version());
        return EXIT_SUCCESS;
    }
    command_line line = {
        .settings = {
            .listen_address = "127.0.0.1", .port = 8321, .limit_scale_percent = 100, .team_quota_bytes = QUOTA_BYTES}};
    int status = read_command_line(argc, argv, &line);
    if (status == 0 && (mss_secret_start(&err) != MS_OK || mss_totp_start(&err) != MS_OK)) {
        status = fail(&err);
    }
    return status != 0 ? status : run(&line);
}
