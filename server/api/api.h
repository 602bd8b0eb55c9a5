/*
 * api.h - the handlers of /api/v1, and functions that the pages share with them. Each handler does one
 * thing to the store and writes its row of the audit. http.h explains handlers, routes.c says who may
 * call each, and openapi.json documents requests and answers.
 */
#ifndef MSS_API_API_H
#define MSS_API_API_H

#include "base/json.h"
#include "http/http.h"

/* ---- what handlers share ---------------------------------------------------------- */

/* The cursor at the top of the JSON body. */
ms__json_at mss_api_body(mss_request *r, ms_error *err);
/* Answers 422 with the text if the body is at fault, else mss_answer_failure(). */
int mss_api_refuse(mss_request *r, const ms_error *err);
/* A text of at most `most` bytes without control characters. If it is missing: "" if `is_optional`, else an error. */
MS_NODISCARD int mss_api_text(const ms__json_at *object, const char *name, size_t most, bool is_optional,
                              const char **text);
/* The number in the query; `fallback` if it is missing, -1 if it is not a number or larger than `most`. */
int64_t mss_api_query_number(const mss_request *r, const char *name, int64_t fallback, int64_t most);
/* Adds a row of the audit for this request: who, the object's team, and the given object. */
MS_NODISCARD int mss_api_audit(mss_request *r, const char *verb, const char *object, ms_error *err);
/* Replace "role_number" by "role", and "scope_bits" by a list "scopes". */
void mss_api_name_role(json_t *item);
void mss_api_name_scopes(json_t *item);
/* Whether a text is 1 to `most` bytes of UTF-8 without control characters. */
bool mss_api_is_line(const char *text, size_t most);
bool mss_api_is_email(const char *text);

/* ---- lists in pages ---------------------------------------------------------------- */

/* The last three parameters of the statement are a number and a text, behind which the page begins, and the most rows. It
 * orders by both, and its columns "cursor_number" (0 or more) and "cursor_text" have them; clients don't see these. */
typedef struct mss_list {
    mss_statement statement;
    enum { MSS_RISING, MSS_FALLING } order;
    bool is_by_id;             /* the text is an identifier */
    const char *cursor;        /* its name in the query; NULL: "cursor" */
    void (*map)(json_t *item); /* rewrites each item; may be NULL */
} mss_list;

/* A page begins behind this place. */
typedef struct mss_position {
    int64_t number;
    char text[256];
} mss_position;

/* Reads the place of the query's cursor; without a cursor, that is the list's beginning. False if the cursor is malformed. */
bool mss_list_position(const mss_request *r, const mss_list *list, mss_position *at);

/* {"items": [...], "next_cursor": ...} for the query's "limit" and cursor, with the statement's other values. NULL with the
 * status if it is refused. */
json_t *mss_api_page(mss_request *r, const mss_list *list, const mss_value *values, size_t count, int *status);
/* The same as the answer. */
int mss_api_list(mss_request *r, const mss_list *list, const mss_value *values, size_t count);

/* Lists of a team. The only value of their statements is the team's id. */
extern const mss_list mss_project_list, mss_member_list, mss_invitation_list, mss_token_list, mss_audit_list;

/* ---- runs -------------------------------------------------------------------- */

int mss_api_run_create(mss_request *r);
int mss_api_run_list(mss_request *r);
int mss_api_run_show(mss_request *r);
int mss_api_run_plan(mss_request *r);
int mss_api_run_append(mss_request *r);
int mss_api_run_steps(mss_request *r);
int mss_api_run_events(mss_request *r);
int mss_api_run_finish(mss_request *r);
int mss_api_run_delete(mss_request *r);
int mss_api_run_compare(mss_request *r);
int mss_api_projects(mss_request *r);

/* {"items": [...], "next_cursor": ...} of the request's query; NULL with the status if it is refused. */
json_t *mss_run_page(mss_request *r, int *status);
/* A run with the list of its artifacts, without their contents. NULL with `err`. */
json_t *mss_run_document(mss_request *r, const char *run, ms_error *err);
/* Whether the team's runs take all that they may, or would with `more_bytes` more: their steps, documents, artifacts, and
 * 1 kB each. */
MS_NODISCARD int mss_quota_check(mss_request *r, uint64_t more_bytes, bool *is_used_up, ms_error *err);
/* Both runs and their differences; both must belong to the same team. NULL with the status if it is refused. */
json_t *mss_run_comparison(mss_request *r, const char *one, const char *other, int *status);
MS_NODISCARD int mss_run_remove(mss_request *r, const char *run, ms_error *err);

/* ---- artifacts of a run: the last segment of the route is the kind ----------------------- */

int mss_api_artifact_set(mss_request *r);
int mss_api_artifact_show(mss_request *r);

/* Stores a document that came with the run's begin, whose bytes are counted; does nothing for NULL. */
MS_NODISCARD int mss_artifact_add(mss_request *r, const char *run, const char *kind, const char *text, ms_error *err);

/* The stored bytes with a NUL behind them, for ms_free(); NULL if the run has none of this kind. */
MS_NODISCARD int mss_artifact_read(mss_request *r, const char *run, const char *kind, char **text, size_t *bytes,
                                   ms_error *err);

/* ---- teams, invitations, tokens --------------------------------------------------- */

int mss_api_teams(mss_request *r);
int mss_api_team_create(mss_request *r);
int mss_api_team_delete(mss_request *r);
int mss_api_members(mss_request *r);
int mss_api_member_set(mss_request *r);
int mss_api_member_remove(mss_request *r);
int mss_api_invitations(mss_request *r);
int mss_api_invite(mss_request *r);
int mss_api_invitation_delete(mss_request *r);
int mss_api_tokens(mss_request *r);
int mss_api_token_create(mss_request *r);
int mss_api_token_delete(mss_request *r);
int mss_api_audit_list(mss_request *r);

/* Each returns 0, or the status of a refusal that it has answered. */
int mss_team_make(mss_request *r, const char *name, const char *owner, mss_id *team);
int mss_team_remove(mss_request *r);
int mss_member_change(mss_request *r, const char *account, mss_role role);
int mss_member_remove(mss_request *r, const char *account);
int mss_invitation_add(mss_request *r, mss_role role, char secret[MSS_SECRET_BYTES]);
int mss_invitation_withdraw(mss_request *r, const char *invitation);
int mss_token_make(mss_request *r, const char *name, uint32_t scopes, char token[MSS_TOKEN_BYTES], mss_id *id);
int mss_token_revoke(mss_request *r, const char *token);

/* ---- the account ------------------------------------------------------------------ */

int mss_api_account_export(mss_request *r);
/* 0, or the status of a refusal: 409 if the account is the only owner of a team with other members. */
int mss_account_remove(mss_request *r);

/* ---- the rest -------------------------------------------------------------------- */

int mss_api_openapi(mss_request *r);
int mss_api_healthz(mss_request *r);
int mss_api_readyz(mss_request *r);
int mss_api_metrics(mss_request *r);
int mss_api_telemetry(mss_request *r);
int mss_api_plan_prepare(mss_request *r);
int mss_api_plan(mss_request *r);
int mss_api_frontiers(mss_request *r);
int mss_api_frontier_create(mss_request *r);
int mss_api_run_frontier(mss_request *r);
int mss_api_frontier_show(mss_request *r);
int mss_api_frontier_result(mss_request *r);

/* Begins a frontier of the run's stored graph, hardware and config: 0, or the status of a refusal. */
int mss_frontier_of_run(mss_request *r, const char *run, uint64_t points, mss_id *job);

#endif
