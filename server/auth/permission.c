#include "auth/permission.h"

#include <stdio.h>
#include <string.h>

enum { NO_SCOPE = 0 };
#define SCOPE_ALL MSS_SCOPE_ALL
#define SCOPE_RUNS_READ MSS_SCOPE_RUNS_READ
#define SCOPE_RUNS_WRITE MSS_SCOPE_RUNS_WRITE
#define SCOPE_ADMIN MSS_SCOPE_ADMIN

static const struct {
    mss_role role;
    uint32_t scope;
    bool needs_sign_in, needs_operator;
} verbs[MSS_VERB_COUNT] = {
#define VERB_ROW(name, role, scope, signed_in, operator) {MSS_##role, scope, signed_in, operator},
    MSS_VERB_TABLE(VERB_ROW)
#undef VERB_ROW
};

static const char *const role_names[] = {"none", "viewer", "member", "admin", "owner"};

const char *mss_role_name(mss_role role)
{
    return role_names[role <= MSS_OWNER ? role : MSS_NO_MEMBER];
}

mss_role mss_role_of(const char *name)
{
    for (int i = MSS_VIEWER; i <= MSS_OWNER; i++) {
        if (strcmp(role_names[i], name) == 0) {
            return (mss_role)i;
        }
    }
    return MSS_NO_MEMBER;
}

static const char *const scope_names[] = {"runs:read", "runs:write", "admin"};

void mss_scopes_text(uint32_t scopes, char text[MSS_SCOPES_TEXT_BYTES])
{
    text[0] = '\0';
    for (uint32_t i = 0; i < 3; i++) {
        if ((scopes >> i & 1) != 0) {
            size_t length = strlen(text);
            snprintf(text + length, MSS_SCOPES_TEXT_BYTES - length, "%s%s", length > 0 ? " " : "", scope_names[i]);
        }
    }
}

uint32_t mss_scope_of(const char *name)
{
    for (uint32_t i = 0; i < 3; i++) {
        if (strcmp(scope_names[i], name) == 0) {
            return 1u << i;
        }
    }
    return 0;
}

int mss_permit(const mss_who *who, mss_verb verb, const mss_object *object)
{
    bool needs_member = verbs[verb].role != MSS_NO_MEMBER;
    if (!verbs[verb].needs_sign_in) {
        return 0;
    }
    if (who->kind == MSS_ANYONE) {
        return 401;
    }
    if (needs_member) {
        bool is_elsewhere = who->kind == MSS_PROGRAM && strcmp(who->token_team.text, object->team.text) != 0;
        if (!mss_id_is(&object->team) || object->role == MSS_NO_MEMBER || is_elsewhere) {
            return 404;
        }
    }
    bool has_scope = who->kind == MSS_PERSON || (who->scopes & verbs[verb].scope) != 0;
    bool has_role = object->role >= verbs[verb].role || !needs_member;
    bool is_operator = who->is_operator || !verbs[verb].needs_operator;
    return has_scope && has_role && is_operator ? 0 : 403;
}

bool mss_role_may_give(mss_role role, mss_role other)
{
    return role == MSS_OWNER || (role == MSS_ADMIN && other < MSS_ADMIN);
}
