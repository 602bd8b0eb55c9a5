/* Pages that anyone may read: what is stored here, and the API's reference, made of its own document. */
#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "assets.h"
#include "pages/pages.h"

int mss_page_privacy(mss_request *r)
{
    return mss_page_show(r, 200, "privacy.html", json_pack("{s:s}", "title", "Privacy"));
}

/* What "$ref": "#/components/<kind>/<name>" leads to, else the value itself. */
static json_t *resolve(const json_t *document, json_t *value)
{
    static const char *const kinds[] = {"schemas", "responses", "parameters"};
    const char *reference = json_string_value(json_object_get(value, "$ref"));
    for (size_t i = 0; reference != NULL && i < sizeof kinds / sizeof kinds[0]; i++) {
        char before[40];
        int length = snprintf(before, sizeof before, "#/components/%s/", kinds[i]);
        if (strncmp(reference, before, (size_t)length) == 0) {
            const json_t *named = json_object_get(json_object_get(document, "components"), kinds[i]);
            return json_object_get(named, reference + length);
        }
    }
    return value;
}

static bool has_item(const json_t *list, const char *text)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (strcmp(json_string_value(json_array_get(list, i)), text) == 0) {
            return true;
        }
    }
    return false;
}

/* "integer" of a member that says nothing else of itself. */
static const char *type_of(const json_t *member)
{
    const json_t *type = json_object_get(member, "type");
    type = json_is_array(type) ? json_array_get(type, 0) : type;
    bool is_described = json_object_get(member, "description") != NULL;
    return is_described || !json_is_string(type) ? "" : json_string_value(type);
}

static json_t *list_members(const json_t *document, const json_t *operation)
{
    json_t *members = json_array(), *member;
    const char *name;
    json_t *content = json_object_get(json_object_get(operation, "requestBody"), "content");
    json_t *schema = resolve(document, json_object_get(json_object_get(content, "application/json"), "schema"));
    const json_t *required = json_object_get(schema, "required");
    json_object_foreach(json_object_get(schema, "properties"), name, member)
    {
        const json_t *told = resolve(document, member);
        json_array_append_new(members, json_pack("{s:s, s:b, s:O*, s:s}", "name", name, "required",
                                                 (int)has_item(required, name), "description",
                                                 json_object_get(told, "description"), "type_text", type_of(told)));
    }
    return members;
}

static json_t *list_answers(const json_t *document, const json_t *operation)
{
    json_t *answers = json_array(), *answer;
    const char *status;
    json_object_foreach(json_object_get(operation, "responses"), status, answer)
    {
        const json_t *told = resolve(document, answer);
        json_array_append_new(answers,
                              json_pack("{s:s, s:O*}", "status", strcmp(status, "default") == 0 ? "otherwise" : status,
                                        "description", json_object_get(told, "description")));
    }
    return answers;
}

static json_t *show_operation(const json_t *document, const char *path, const char *method, json_t *operation)
{
    char upper[8] = "";
    for (size_t i = 0; method[i] != '\0' && i + 1 < sizeof upper; i++) {
        upper[i] = (char)(method[i] - 'a' + 'A');
    }
    return json_pack("{s:s, s:s, s:O, s:b, s:O*, s:o, s:o}", "method", upper, "path", path, "summary",
                     json_object_get(operation, "summary"), "has_details", 1, "parameters",
                     json_object_get(operation, "parameters"), "members", list_members(document, operation), "answers",
                     list_answers(document, operation));
}

int mss_page_reference(mss_request *r)
{
    const mss_asset *asset = mss_asset_find("openapi.json");
    json_t *document = json_loadb((const char *)asset->bytes, asset->size, 0, NULL), *operations = json_array();
    const char *path, *method;
    json_t *methods, *operation;
    json_object_foreach(json_object_get(document, "paths"), path, methods)
    {
        json_object_foreach(methods, method, operation)
        {
            json_array_append_new(operations, show_operation(document, path, method, operation));
        }
    }
    json_t *page =
        json_pack("{s:s, s:O*, s:o}", "title", "API", "about",
                  json_object_get(json_object_get(document, "info"), "description"), "operations", operations);
    json_decref(document);
    return mss_page_show(r, 200, "reference.html", page);
}
