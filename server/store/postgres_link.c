#include "store/postgres_link.h"

#include <stdlib.h>
#include <string.h>

#include "store/driver.h"

/* ---- errors ------------------------------------------------------------------- */

typedef struct meaning {
    const char *state; /* the beginning of an SQLSTATE */
    int code;
} meaning;

static const meaning meanings[] = {
    {"23", MS_ESTATE},       /* a constraint */
    {"53100", MS_ENOSPC},    /* the disk is full */
    {"53200", MS_ENOMEM},    /* out of memory */
    {"55P03", MS_ETIMEDOUT}, /* a lock was not to be had */
    {"57014", MS_ETIMEDOUT}, /* cancelled, or the time of a statement was up */
    {"40", MS_ETIMEDOUT},    /* a deadlock; the transaction may be tried again */
    {"08", MS_EIO},          /* the connection */
    {"53300", MS_EIO},       /* too many connections */
    {"57P", MS_EIO},         /* shut down, or not up yet */
    {"25P03", MS_EIO},       /* stood still within a transaction, and was cut off */
    {"XX00", MS_EFORMAT},    /* damage */
};

static int code_of(PGconn *link, const PGresult *result)
{
    const char *state = result != NULL ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;
    if (PQstatus(link) != CONNECTION_OK) {
        return MS_EIO;
    }
    for (size_t i = 0; state != NULL && i < sizeof meanings / sizeof meanings[0]; i++) {
        if (strncmp(state, meanings[i].state, strlen(meanings[i].state)) == 0) {
            return meanings[i].code;
        }
    }
    return MS_ESYSTEM;
}

int mss_link_fail(PGconn *link, const PGresult *result, const char *doing, ms_error *err)
{
    const char *told = result != NULL ? PQresultErrorMessage(result) : "";
    const char *text = told[0] != '\0' ? told : PQerrorMessage(link);
    return ms_fail(err, code_of(link, result), "%s: %.*s", doing, (int)strcspn(text, "\n"), text);
}

/* ---- what may be asked for ------------------------------------------------------- */

/* libpq marks by a star what nobody may see: the password, and that of a TLS key. */
static bool has_password(const PQconninfoOption *options)
{
    for (; options->keyword != NULL; options++) {
        if (options->dispchar[0] == '*' && options->val != NULL) {
            return true;
        }
    }
    return false;
}

int mss_postgres_accepts(const char *where, ms_error *err)
{
    PQconninfoOption *options = PQconninfoParse(where, NULL); /* whose message would repeat the URL */
    if (options == NULL) {
        return ms_fail(err, MS_ECONFIG, "--database: this is no URL of PostgreSQL's");
    }
    bool is_open = has_password(options);
    PQconninfoFree(options);
    return is_open ? ms_fail(err, MS_ECONFIG,
                             "--database: everyone on this machine can read a password on the command line; put it "
                             "into the file that PGPASSFILE names, or into PGPASSWORD")
                   : MS_OK;
}

/* ---- connecting ----------------------------------------------------------------- */

/* PostgreSQL's notices, such as that a table exists already. */
static void hear_nothing(void *argument, const char *text)
{
    (void)argument;
    (void)text;
}

/*
 * A commit is on the disk when it is acknowledged, whatever the database's default. Whoever waits for the write lock
 * gives up after ten seconds, as with SQLite; whoever stands still in a transaction loses it, because others wait.
 */
static const char session[] =
    "SET lock_timeout = '10s'; SET idle_in_transaction_session_timeout = '30s';"
    "SET default_transaction_isolation = 'read committed';"
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off';";

static int run_text(PGconn *link, const char *text, ms_error *err)
{
    PGresult *result = PQexec(link, text);
    ExecStatusType status = PQresultStatus(result);
    int rc =
        status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK ? MS_OK : mss_link_fail(link, result, "database", err);
    PQclear(result);
    return rc;
}

static int set_up(PGconn *link, mss_sql_mode mode, ms_error *err)
{
    const char *encoding = PQparameterStatus(link, "server_encoding");
    PQsetNoticeProcessor(link, hear_nothing, NULL);
    if (encoding == NULL || strcmp(encoding, "UTF8") != 0) {
        return ms_fail(err, MS_ECONFIG, "the database %s has the encoding %s; it must be UTF8", PQdb(link),
                       encoding != NULL ? encoding : "?");
    }
    int rc = run_text(link, session, err);
    return rc == MS_OK && mode == MSS_SQL_READ ? run_text(link, "SET default_transaction_read_only = on", err) : rc;
}

/* What stands before the URL it may change, what stands behind it it may not. A host that is gone without a word is
 * noticed within half a minute. */
static PGconn *connect_to(const char *where)
{
    static const char *const names[] = {
        "fallback_application_name",
        "connect_timeout",
        "keepalives_idle",
        "keepalives_interval",
        "keepalives_count",
        "tcp_user_timeout",
        "dbname",
        "client_encoding",
        NULL,
    };
    const char *values[] = {"memscale-server", "5", "10", "5", "3", "20000", where, "UTF8", NULL};
    return PQconnectdbParams(names, values, 1);
}

int mss_link_open(const char *where, mss_sql_mode mode, PGconn **out, ms_error *err)
{
    PGconn *link = connect_to(where);
    if (link == NULL) {
        return ms_fail(err, MS_ENOMEM, "database: out of memory");
    }
    int rc = PQstatus(link) == CONNECTION_OK ? set_up(link, mode, err) : mss_link_fail(link, NULL, "database", err);
    if (rc != MS_OK) {
        PQfinish(link);
        return rc;
    }
    *out = link;
    return MS_OK;
}

/* ---- ports -------------------------------------------------------------------- */

static const char *value_of(const PQconninfoOption *options, const char *name)
{
    for (; options->keyword != NULL; options++) {
        if (strcmp(options->keyword, name) == 0 && options->val != NULL) {
            return options->val;
        }
    }
    return "";
}

/* "5432,5433" */
static size_t read_ports(const char *text, uint16_t *ports, size_t most)
{
    size_t count = 0;
    char *end;
    while (count < most) {
        unsigned long port = strtoul(text, &end, 10);
        if (end == text || port > UINT16_MAX) {
            break;
        }
        ports[count++] = (uint16_t)port;
        text = end + (*end == ',');
    }
    return count;
}

size_t mss_link_ports(PGconn *link, uint16_t *ports, size_t most)
{
    const char *host = PQhost(link);
    if (host != NULL && host[0] == '/') {
        return 0;
    }
    PQconninfoOption *options = PQconninfo(link);
    size_t count = options != NULL ? read_ports(value_of(options, "port"), ports, most) : 0;
    PQconninfoFree(options);
    return count;
}
