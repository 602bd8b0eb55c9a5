/*
 * http.h - requests, answers and routes. `server.c` speaks HTTP through libmicrohttpd, `lanes.c` runs
 * handlers, `live.c` sends events to the viewers of a run.
 *
 * A handler gets one request, fills `request->answer` and returns its status. It runs in the lane that
 * its route names; `request->sql` is that lane's connection to the database. In the write lane it runs
 * in a savepoint, which a status of 400 or more rolls back, unless the answer `keeps_writes`.
 */
#ifndef MSS_HTTP_HTTP_H
#define MSS_HTTP_HTTP_H

#include <jansson.h>

#include "auth/identity.h"
#include "http/networks.h"
#include "http/uri.h"
#include "limits/limits.h"
#include "memscale/base.h"
#include "store/sql.h"

typedef struct mss_request mss_request;
typedef struct mss_server mss_server;
typedef struct mss_live mss_live;
typedef struct mss_lanes mss_lanes;

/* ---- routes ----------------------------------------------------------------- */

typedef enum mss_method { MSS_GET, MSS_POST, MSS_PUT, MSS_DELETE, MSS_METHOD_COUNT } mss_method;
const char *mss_method_name(mss_method method);

/* INLINE: answers at once, on the thread that reads the network; no database. */
typedef enum mss_lane { MSS_LANE_INLINE, MSS_LANE_READ, MSS_LANE_WRITE, MSS_LANE_SLOW, MSS_LANE_COUNT } mss_lane;

typedef enum mss_body { MSS_BODY_NONE, MSS_BODY_JSON, MSS_BODY_FORM, MSS_BODY_HTML } mss_body;

/* The object whose team decides about permission. */
typedef enum mss_subject {
    MSS_NO_SUBJECT,
    MSS_TEAM_IN_PATH,  /* the first parameter */
    MSS_RUN_IN_PATH,   /* the first parameter */
    MSS_JOB_IN_PATH,   /* the first parameter */
    MSS_TEAM_IN_QUERY, /* ?team=, else the token's, else the account's first team */
} mss_subject;

typedef struct mss_route {
    mss_method method;
    const char *path; /* "{name}" is one segment */
    mss_verb verb;
    mss_subject subject;
    mss_lane lane;
    mss_body body;
    uint32_t body_most_bytes;
    mss_limit limit;
    int (*handle)(mss_request *request);
    /* Runs in the slow lane before `handle`; after a status of 400 or more `handle` doesn't run. May be NULL. */
    int (*prepare)(mss_request *request);
} mss_route;

/* ---- requests and answers ------------------------------------------------------ */

typedef struct mss_answer {
    int status;
    const char *type;    /* media type */
    char *text;          /* owned; NULL: `fixed` */
    const void *fixed;   /* lives as long as the program */
    size_t bytes;
    char location[256];
    char cookie[256];
    char allow[40];      /* of a 405: the methods that the path takes */
    uint32_t retry_after_s;
    bool may_be_cached;  /* an asset; everything else is "no-store" */
    bool is_download;    /* saved, not shown; if a browser shows it all the same, in a sandbox */
    bool keeps_writes;   /* of a refusal in the write lane: what it wrote stays, such as a try that was taken */
    mss_id watch;        /* a run: the answer is a stream of its events */
    mss_id told;         /* a run whose viewers are told `event` after the commit */
    char *event;         /* owned */
} mss_answer;

struct mss_request {
    mss_server *server;
    const mss_route *route; /* NULL: none matched */
    mss_sql *sql;           /* of the lane that runs it; NULL inline */
    char id[MSS_ID_BYTES];
    mss_method method;
    char path[MSS_PATH_BYTES];
    char parameters[MSS_PARAMETERS_MOST][MSS_PARAMETER_BYTES];
    mss_pairs query, form;
    json_t *json;           /* of a JSON body: an object */
    char *body;
    size_t body_bytes, body_room;
    /* Headers that handlers look at; empty when missing. */
    char bearer[MSS_TOKEN_BYTES], session[MSS_SECRET_BYTES], csrf[MSS_HASH_TEXT_BYTES];
    char idempotency_key[65], address[64];
    bool is_cross_site;
    mss_who who;
    mss_object object;
    char csrf_wanted[MSS_HASH_TEXT_BYTES]; /* of the session, for forms; empty for others */
    char password_hash[128];               /* from `prepare` for `handle` */
    mss_id prepared;                       /* from `prepare` for `handle`: the account whose password was right */
    char bucket[96];                       /* of its address */
    mss_answer answer;
    char reason[MS_ERROR_TEXT_MAX];        /* for the log */
    uint64_t begun_ns;
    /* for server.c and lanes.c */
    struct MHD_Connection *connection;
    mss_request *next;
    mss_lane waits_in;
    enum { MSS_READING, MSS_RUNNING, MSS_ANSWERED } state;
    bool is_prepared;
};

/* Whether errors are answered by problem documents (RFC 9457); else by pages. */
bool mss_request_is_api(const mss_request *request);

/* ---- answering: each returns the status for the handler to return ------------------ */

/* Takes over `tree`; NULL means out of memory. */
int mss_answer_json(mss_request *request, int status, json_t *tree);
/* Takes over `text`, which ms_free() will free; NULL means out of memory. */
int mss_answer_text(mss_request *request, int status, const char *type, char *text);
int mss_answer_empty(mss_request *request);
/* 303 to `fmt`, a path. */
int mss_answer_redirect(mss_request *request, const char *fmt, ...) MS_PRINTF(2, 3);
/* A refusal: `fmt` says in one sentence what was wrong. */
int mss_answer_problem(mss_request *request, int status, const char *fmt, ...) MS_PRINTF(3, 4);
/* A failure of the server: 503 if memory or disk space is exhausted or the database is locked or gone, else 500. Only
 * the log gets the reason. */
int mss_answer_failure(mss_request *request, const ms_error *err);

/* Renders a refusal as a page. `pages` sets it, so that `http` needs not include `pages`. */
typedef int (*mss_problem_page)(mss_request *request, int status, const char *title, const char *detail);

/* ---- limits ------------------------------------------------------------------- */

/* Takes one token from the bucket of `who` in the class, here and, in a lane, from the one that all servers on the
 * database share. Returns 0, or the status of a refusal that it has answered: 429, or 503 if the database is gone. */
int mss_request_limit(mss_request *request, mss_limit limit, const char *who);
/* Takes one from the shared bucket of the request's address; the one here was asked before the body was read. In a
 * lane. */
int mss_request_limit_address(mss_request *request);

/* ---- the server ------------------------------------------------------------------ */

typedef struct mss_settings {
    const char *database;       /* a file, or "postgresql://..." */
    const char *listen_address; /* numeric */
    uint16_t port;              /* 0: any that is free */
    const char *public_url;     /* "https://host" as browsers see it; NULL: http on loopback names */
    mss_networks proxies;       /* whose X-Forwarded-For is believed, and that may have any number of connections */
    mss_networks cloudflare;    /* the same of CF-Connecting-IP */
    uint32_t limit_scale_percent;
    uint64_t team_quota_bytes;
    mss_id local_account;       /* of the local dashboard: every client acts as this account, and may only read */
    const mss_route *routes;
    size_t route_count;
    mss_problem_page problem_page;
    /* Runs a request's route with `request->sql`; dispatch.c. */
    int (*dispatch)(mss_request *request, bool is_preparing);
} mss_settings;

/* Listens and serves until mss_server_stop(). The database exists and is migrated. */
MS_NODISCARD int mss_server_start(const mss_settings *settings, mss_server **server, ms_error *err);
/* Finishes and answers the requests that have begun, and ends. Accepts NULL. */
void mss_server_stop(mss_server *server);

const mss_settings *mss_server_settings(const mss_server *server);
/* Whether browsers reach us over https. */
bool mss_server_is_https(const mss_server *server);
/* "https://host", the beginning of links. */
const char *mss_server_url(const mss_server *server);

typedef struct mss_server_numbers {
    uint64_t requests[6]; /* by first digit of the status */
    uint64_t busy_ns;     /* from the head to the answer, summed */
    uint64_t viewers, commits, written; /* requests that the commits held */
    uint64_t waiting[MSS_LANE_COUNT];
} mss_server_numbers;
void mss_server_count(mss_server *server, mss_server_numbers *numbers);

/* Whether any run has a viewer, or may have one at another server; if not, events needn't be made. */
bool mss_server_is_watched(mss_server *server);

/* Sends `data`, one line of JSON, to the viewers of a run. */
void mss_server_tell(mss_server *server, const mss_id *run, const char *data);

/* Asks the write lane to store that this token was used. Never waits; may be lost. */
void mss_server_touch(mss_server *server, const mss_id *token);

#endif
