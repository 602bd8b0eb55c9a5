#include "auth/identity.h"

#include <string.h>

#include "log/log.h"
#include "store/statements.h"

static mss_hash hash_secret(const char *secret)
{
    return mss_hash_of(secret, strlen(secret));
}

int mss_identify_session(mss_sql *sql, const char *secret, mss_who *who, ms_error *err)
{
    mss_rows rows;
    bool has = false;
    mss_hash hash = hash_secret(secret);
    *who = (mss_who){.kind = MSS_ANYONE};
    int rc = mss_sql_first(sql, MSS_SESSION_FIND, MSS_WITH(MSS_HASH(&hash), MSS_INT(mss_now_ms())), &rows, &has, err);
    if (rc == MS_OK && has) {
        who->kind = MSS_PERSON;
        who->session = hash;
        mss_rows_copy(&rows, 0, who->account.text, sizeof who->account.text);
        who->is_operator = mss_rows_int(&rows, 1) != 0;
        mss_rows_copy(&rows, 2, who->email, sizeof who->email);
    }
    mss_rows_end(&rows);
    return rc;
}

int mss_identify_token(mss_sql *sql, const char *token, mss_who *who, ms_error *err)
{
    mss_rows rows;
    bool has = false;
    mss_hash hash = hash_secret(token);
    *who = (mss_who){.kind = MSS_ANYONE};
    int rc = mss_sql_first(sql, MSS_TOKEN_FIND, MSS_WITH(MSS_HASH(&hash)), &rows, &has, err);
    if (rc == MS_OK && has) {
        who->kind = MSS_PROGRAM;
        mss_rows_copy(&rows, 0, who->token.text, sizeof who->token.text);
        mss_rows_copy(&rows, 1, who->token_team.text, sizeof who->token_team.text);
        mss_rows_copy(&rows, 2, who->account.text, sizeof who->account.text);
        who->scopes = (uint32_t)mss_rows_int(&rows, 3);
        who->is_operator = mss_rows_int(&rows, 4) != 0;
        mss_rows_copy(&rows, 5, who->email, sizeof who->email);
        who->token_used_at = mss_rows_int(&rows, 6);
    }
    mss_rows_end(&rows);
    return rc;
}

int mss_session_start(mss_sql *sql, const mss_id *account, char secret[MSS_SECRET_BYTES], ms_error *err)
{
    int64_t now = mss_now_ms();
    int rc = mss_sql_run(sql, MSS_SESSION_EXPIRE, MSS_WITH(MSS_INT(now)), NULL, err);
    if (rc != MS_OK) {
        return rc;
    }
    mss_secret_new(secret);
    mss_hash hash = hash_secret(secret);
    return mss_sql_run(sql, MSS_SESSION_ADD,
                       MSS_WITH(MSS_HASH(&hash), MSS_TEXT(account->text), MSS_INT(now), MSS_INT(now + MSS_SESSION_MS)),
                       NULL, err);
}

void mss_session_csrf(const mss_who *who, char csrf[MSS_HASH_TEXT_BYTES])
{
    mss_hash_keyed(&who->session, "csrf", csrf);
}

int mss_invitation_make(mss_sql *sql, const char *team, mss_role role, const char *created_by,
                        char secret[MSS_SECRET_BYTES], ms_error *err)
{
    int64_t now = mss_now_ms();
    int rc = mss_sql_run(sql, MSS_INVITATION_EXPIRE, MSS_WITH(MSS_INT(now)), NULL, err);
    if (rc == MS_OK && team == NULL) { /* a new first link ends the older ones */
        rc = mss_sql_run(sql, MSS_INVITATION_DELETE_FIRST, MSS_NONE, NULL, err);
    }
    if (rc != MS_OK) {
        return rc;
    }
    mss_secret_new(secret);
    mss_hash hash = hash_secret(secret);
    mss_id id = mss_id_new('i');
    return mss_sql_run(sql, MSS_INVITATION_ADD,
                       MSS_WITH(MSS_TEXT(id.text), MSS_HASH(&hash), MSS_TEXT(team), MSS_INT(role), MSS_TEXT(created_by),
                                MSS_INT(now), MSS_INT(now + MSS_INVITATION_MS)),
                       NULL, err);
}
