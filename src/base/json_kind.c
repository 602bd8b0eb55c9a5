/*
 * Recognizes the kind of a document, so that the error for a wrong file names its kind instead of the first missing
 * member. Called by ms__json_parse().
 */
#include <string.h>

#include "base/json.h"

typedef struct kind {
    const char *name; /* as ms__json_parse() gets it */
    const char *text;
    const char *members[3]; /* a document of this kind has them all; the first match in the table counts */
} kind;

/* The kinds of docs/formats. A configuration may have a single member of any name, so its two most usual members
 * stand alone, and last. */
static const kind kinds[] = {
    {"graph", "a graph", {"profiles", "nodes"}},
    {"plan", "an execution plan", {"predicted", "entries"}},
    {"hardware", "a hardware description", {"cpu", "ram", "process"}},
    {"frontier", "a frontier of plans", {"need_bytes", "points"}},
    {"policy", "a trained policy", {"checksum", "policy"}},
    {"doctor", "a doctor report", {"ok", "checks"}},
    {"log", "a line of a log file", {"level", "message"}},
    {"telemetry", "a telemetry event", {"schema_version", "event"}},
    {"model", "the configuration of a transformers model", {"model_type"}},
    {"config", "a configuration", {"memory_budget_gb"}},
    {"config", "a configuration", {"enable_checkpointing"}},
};
enum { KINDS = sizeof kinds / sizeof kinds[0], MEMBERS = sizeof kinds[0].members / sizeof kinds[0].members[0] };

static bool kind_matches(const json_t *object, const kind *tried)
{
    for (size_t i = 0; i < MEMBERS && tried->members[i] != NULL; i++) {
        if (json_object_get(object, tried->members[i]) == NULL) {
            return false;
        }
    }
    return true;
}

static const kind *find_name(const char *name)
{
    for (size_t i = 0; i < KINDS; i++) {
        if (strcmp(kinds[i].name, name) == 0) {
            return &kinds[i];
        }
    }
    return NULL;
}

int ms__json_check_kind(const ms__json_at *root)
{
    const kind *wanted = find_name(root->name);
    const kind *found = NULL;
    for (size_t i = 0; wanted != NULL && found == NULL && i < KINDS; i++) {
        found = kind_matches(root->value, &kinds[i]) ? &kinds[i] : NULL;
    }
    if (found == NULL || strcmp(found->name, wanted->name) == 0 || kind_matches(root->value, wanted)) {
        return MS_OK;
    }
    return ms__json_fail(root, MS_EFORMAT, "expected %s, found %s", wanted->text, found->text);
}
