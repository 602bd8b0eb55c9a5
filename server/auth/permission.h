/*
 * permission.h - who may do what. dispatch.c calls one function before every handler. Every route names
 * its verb; the table says which role in the object's team the verb needs, and which scope of a token.
 */
#ifndef MSS_AUTH_PERMISSION_H
#define MSS_AUTH_PERMISSION_H

#include "auth/secret.h"

typedef enum mss_role { MSS_NO_MEMBER, MSS_VIEWER, MSS_MEMBER, MSS_ADMIN, MSS_OWNER } mss_role;

/* A token's scopes, as bits. */
enum { MSS_SCOPE_RUNS_READ = 1, MSS_SCOPE_RUNS_WRITE = 2, MSS_SCOPE_ADMIN = 4, MSS_SCOPE_ALL = 7 };

/* The name of a role: "viewer", ...; "none" for no role. The role of a name: MSS_NO_MEMBER for any other text. */
const char *mss_role_name(mss_role role);
mss_role mss_role_of(const char *name);

/* The names of the bits' scopes ("runs:read", ...); the bit of a name, 0 for any other text. */
enum { MSS_SCOPES_TEXT_BYTES = 40 };
void mss_scopes_text(uint32_t scopes, char text[MSS_SCOPES_TEXT_BYTES]);
uint32_t mss_scope_of(const char *name);

/* Verb, role in the object's team (NO_MEMBER: none is needed), scope that a token needs (NO_SCOPE: no token
 * is enough), whether signing in is needed, whether the account must be an operator. */
#define MSS_VERB_TABLE(X) \
    X(PUBLIC, NO_MEMBER, SCOPE_ALL, false, false) \
    X(SELF, NO_MEMBER, NO_SCOPE, true, false)       /* one's own account, by a person */ \
    X(RUN_READ, VIEWER, SCOPE_RUNS_READ, true, false) \
    X(RUN_WRITE, MEMBER, SCOPE_RUNS_WRITE, true, false) \
    X(RUN_DELETE, ADMIN, SCOPE_ADMIN, true, false) \
    X(PLAN_MAKE, VIEWER, SCOPE_RUNS_READ, true, false) \
    X(TEAM_READ, VIEWER, SCOPE_RUNS_READ, true, false) \
    X(TEAM_MANAGE, ADMIN, SCOPE_ADMIN, true, false) /* members and invitations */ \
    X(TEAM_OWN, OWNER, NO_SCOPE, true, false) \
    X(TOKEN_MANAGE, MEMBER, NO_SCOPE, true, false)  /* by a person: a token makes no tokens */ \
    X(OPERATE, NO_MEMBER, SCOPE_ADMIN, true, true)

typedef enum mss_verb {
#define MSS_VERB_ENUM(name, role, scope, signed_in, operator) MSS_MAY_##name,
    MSS_VERB_TABLE(MSS_VERB_ENUM)
#undef MSS_VERB_ENUM
        MSS_VERB_COUNT
} mss_verb;

typedef enum mss_who_kind { MSS_ANYONE, MSS_PERSON, MSS_PROGRAM } mss_who_kind;

/* The client: unknown, a person with a session, or a program with a token. */
typedef struct mss_who {
    mss_who_kind kind;
    mss_id account;
    bool is_operator;
    char email[256];
    mss_hash session;      /* of a person: the stored hash of the cookie */
    mss_id token, token_team;
    uint32_t scopes;
    int64_t token_used_at; /* ms */
} mss_who;

/* The object's team, and the account's role in it. Verbs without an object have an empty team. */
typedef struct mss_object {
    mss_id team;
    mss_role role;
} mss_object;

/* 0: allowed. 401: signing in is needed. 404: the object belongs to a team of which `who` is no member, and
 * the answer must not tell that it exists. 403: the role or the token is not enough. */
int mss_permit(const mss_who *who, mss_verb verb, const mss_object *object);

/* Whether a person in `role` may give or take the role `other`: admins roles below theirs, owners any role. */
bool mss_role_may_give(mss_role role, mss_role other);

#endif
