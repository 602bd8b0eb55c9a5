/*
 * Telemetry events, taken from anyone: checked against docs/formats/telemetry.schema.json itself, which is
 * built in, with the technique.schema.json that it refers to. The day is stored, and no address, time of day
 * or account.
 */
#include <regex.h>
#include <string.h>

#include "api/api.h"
#include "assets.h"
#include "log/log.h"
#include "store/statements.h"

/* What of JSON Schema that document uses: const, enum, pattern, type, items, uniqueItems, anyOf, $ref. */
static bool is_allowed(const json_t *document, const json_t *schema, const json_t *value);

static bool matches(const char *pattern, const char *text)
{
    regex_t compiled;
    if (regcomp(&compiled, pattern, REG_EXTENDED | REG_NOSUB) != 0) {
        return false;
    }
    bool result = regexec(&compiled, text, 0, NULL, 0) == 0;
    regfree(&compiled);
    return result;
}

static bool is_one_of(const json_t *words, const json_t *value)
{
    for (size_t i = 0; i < json_array_size(words); i++) {
        if (json_equal(json_array_get(words, i), value)) {
            return true;
        }
    }
    return false;
}

static bool is_set_of(const json_t *document, const json_t *items, const json_t *array)
{
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *item = json_array_get(array, i);
        if (!is_allowed(document, items, item)) {
            return false;
        }
        for (size_t j = 0; j < i; j++) {
            if (json_equal(item, json_array_get(array, j))) {
                return false;
            }
        }
    }
    return true;
}

static bool is_any_of(const json_t *document, const json_t *schemas, const json_t *value)
{
    for (size_t i = 0; i < json_array_size(schemas); i++) {
        if (is_allowed(document, json_array_get(schemas, i), value)) {
            return true;
        }
    }
    return false;
}

static bool is_allowed(const json_t *document, const json_t *schema, const json_t *value)
{
    const char *reference = json_string_value(json_object_get(schema, "$ref"));
    const char *pattern = json_string_value(json_object_get(schema, "pattern"));
    const char *type = json_string_value(json_object_get(schema, "type"));
    const json_t *constant = json_object_get(schema, "const"), *words = json_object_get(schema, "enum");
    const json_t *any = json_object_get(schema, "anyOf");
    if (reference != NULL) {
        const char *slash = strrchr(reference, '/'), *name = slash != NULL ? slash + 1 : reference;
        return is_allowed(document, json_object_get(json_object_get(document, "$defs"), name), value);
    }
    if (constant != NULL) {
        return json_equal(constant, value);
    }
    if (any != NULL) {
        return is_any_of(document, any, value);
    }
    if (words != NULL) {
        return is_one_of(words, value);
    }
    if (pattern != NULL) {
        return json_is_string(value) && matches(pattern, json_string_value(value));
    }
    if (type != NULL && strcmp(type, "boolean") == 0) {
        return json_is_boolean(value);
    }
    return type != NULL && strcmp(type, "array") == 0 && json_is_array(value) &&
           is_set_of(document, json_object_get(schema, "items"), value);
}

/* The first member that is missing, unknown or wrong; NULL if the event is valid. */
static const char *first_wrong(const json_t *document, json_t *event)
{
    const json_t *properties = json_object_get(document, "properties"),
                 *required = json_object_get(document, "required");
    const char *name;
    json_t *value;
    for (size_t i = 0; i < json_array_size(required); i++) {
        name = json_string_value(json_array_get(required, i));
        if (json_object_get(event, name) == NULL) {
            return name;
        }
    }
    json_object_foreach(event, name, value)
    {
        const json_t *schema = json_object_get(properties, name);
        if (schema == NULL || !is_allowed(document, schema, value)) {
            return name;
        }
    }
    return NULL;
}

static int store_event(mss_request *r)
{
    ms_error err;
    char day[MSS_TIME_TEXT_BYTES], *event = ms__json_text(r->json, true);
    mss_time_text(mss_now_ms(), day);
    day[strlen("2026-01-31")] = '\0';
    int rc = event == NULL
                 ? ms_fail(&err, MS_ENOMEM, "telemetry: out of memory")
                 : mss_sql_run(r->sql, MSS_TELEMETRY_ADD, MSS_WITH(MSS_TEXT(day), MSS_TEXT(event)), NULL, &err);
    ms_free(event);
    return rc == MS_OK ? mss_answer_empty(r) : mss_answer_failure(r, &err);
}

static json_t *load(const char *name)
{
    const mss_asset *file = mss_asset_find(name);
    return json_loadb((const char *)file->bytes, file->size, 0, NULL);
}

/* The schema; the one of another file that it refers to stands among its definitions. */
static json_t *load_schema(void)
{
    static const char other[] = "technique.schema.json";
    json_t *document = load("telemetry.schema.json");
    if (document == NULL || json_object_set_new(json_object_get(document, "$defs"), other, load(other)) != 0) {
        json_decref(document);
        return NULL;
    }
    return document;
}

int mss_api_telemetry(mss_request *r)
{
    json_t *document = load_schema();
    if (document == NULL) {
        return mss_answer_failure(r, &(ms_error){.code = MS_ENOMEM, .text = "telemetry: out of memory"});
    }
    const char *wrong = first_wrong(document, r->json);
    int status = wrong == NULL ? store_event(r)
                               : mss_answer_problem(r, 422, "\"%.60s\" is not as schema version 2 has it.", wrong);
    json_decref(document);
    return status;
}
