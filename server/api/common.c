#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "store/audit.h"
#include "store/statements.h"

ms__json_at mss_api_body(mss_request *r, ms_error *err)
{
    return (ms__json_at){.value = r->json, .name = "body", .err = err};
}

int mss_api_refuse(mss_request *r, const ms_error *err)
{
    return err->code == MS_EFORMAT || err->code == MS_EVERSION ? mss_answer_problem(r, 422, "%s", err->text)
                                                               : mss_answer_failure(r, err);
}

bool mss_api_is_line(const char *text, size_t most)
{
    size_t length = strlen(text);
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f) {
            return false;
        }
    }
    return length > 0 && length <= most;
}

/* Something before and something with a dot behind one "@": whoever owns it shows by using the invitation. */
bool mss_api_is_email(const char *text)
{
    const char *at = strchr(text, '@');
    return mss_api_is_line(text, 254) && at != NULL && at != text && strchr(at + 1, '@') == NULL && at[1] != '\0' &&
           strpbrk(text, " \",:;<>()[]\\") == NULL;
}

int mss_api_text(const ms__json_at *object, const char *name, size_t most, bool is_optional, const char **text)
{
    *text = "";
    if (is_optional && !ms__json_has(object, name)) {
        return MS_OK;
    }
    int rc = ms__json_string(object, name, text);
    if (rc == MS_OK && !mss_api_is_line(*text, most)) {
        rc = ms__json_fail(object, MS_EFORMAT, "\"%s\" must have 1 to %zu bytes and no control characters", name, most);
    }
    return rc;
}

int64_t mss_api_query_number(const mss_request *r, const char *name, int64_t fallback, int64_t most)
{
    const char *text = mss_pairs_get(&r->query, name);
    if (text == NULL) {
        return fallback;
    }
    bool is_number = text[0] != '\0' && strspn(text, "0123456789") == strlen(text) && strlen(text) <= 18;
    long long number = is_number ? strtoll(text, NULL, 10) : -1;
    return number <= most ? number : -1;
}

int mss_api_audit(mss_request *r, const char *verb, const char *object, ms_error *err)
{
    return mss_audit_add(r->sql, r->who.account.text, r->object.team.text, verb, object, err);
}

void mss_api_name_role(json_t *item)
{
    json_int_t role = json_integer_value(json_object_get(item, "role_number"));
    json_object_del(item, "role_number");
    json_object_set_new(item, "role", json_string(mss_role_name((mss_role)role)));
}

void mss_api_name_scopes(json_t *item)
{
    static const char *const names[] = {"runs:read", "runs:write", "admin"};
    json_int_t bits = json_integer_value(json_object_get(item, "scope_bits"));
    json_t *scopes = json_array();
    for (int i = 0; i < 3; i++) {
        if ((bits >> i & 1) != 0) {
            json_array_append_new(scopes, json_string(names[i]));
        }
    }
    json_object_del(item, "scope_bits");
    json_object_set_new(item, "scopes", scopes);
}
