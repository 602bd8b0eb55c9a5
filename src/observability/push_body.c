/* The bodies of push_body.h. Members of a line are named one by one: nothing is sent only because it lies in a log. */
#include "observability/push_body.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "observability/run_log.h"

enum { TEXT_MOST_BYTES = 120 };

/* Of a run's begin: those that a server can do without come first. */
static const char *const documents[] = {"graph", "plan", "hardware", "config"};

/* Puts a text as servers take it: bounded, without control characters; nothing for an empty one. */
static void put_text(ms__json_writer *writer, json_t *root, const char *name, const char *text)
{
    char copy[TEXT_MOST_BYTES + 1];
    size_t length = 0;
    for (; text != NULL && text[length] != '\0' && length < TEXT_MOST_BYTES; length++) {
        bool is_control = (unsigned char)text[length] < ' ' || text[length] == 0x7f;
        copy[length] = is_control ? ' ' : text[length];
    }
    if (text != NULL && text[length] != '\0') { /* no half of a character at the cut */
        while (length > 0 && ((unsigned char)text[length] & 0xc0) == 0x80) {
            length--;
        }
    }
    copy[length] = '\0';
    if (length > 0) {
        ms__json_put_string(writer, root, name, copy);
    }
}

/* The first of these that is a text and not empty. */
static const char *first_text(const char *a, const char *b, const char *c)
{
    const char *const list[] = {a, b, c};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        if (list[i] != NULL && list[i][0] != '\0') {
            return list[i];
        }
    }
    return NULL;
}

static const char *text_in(const json_t *object, const char *name)
{
    return json_string_value(json_object_get(object, name));
}

static void put_number(ms__json_writer *writer, json_t *root, const char *name, const json_t *value)
{
    json_int_t number = json_integer_value(value);
    if (json_is_integer(value) && number >= 0 && (uint64_t)number <= MS__STEP_VALUE_MOST) {
        ms__json_put_u64(writer, root, name, (uint64_t)number);
    }
}

/* Text members of documents that stay on this machine, and what is said in their place (NULL: null). A plan's and a
 * graph's signature may hold values of the forward's arguments; the others are paths. */
static const struct secret {
    const char *document, *inner, *name, *instead;
} secrets[] = {
    {"plan", NULL, "signature", ""},
    {"graph", NULL, "signature", ""},
    {"hardware", "disk", "dir", "disk"},
    {"hardware", "ram", "limit_source", ""},
    {"config", NULL, "disk_offload_dir", NULL},
    {"config", NULL, "log_file", NULL},
};

/* Puts a copy of the line's document, without its secrets. */
static void put_document(ms__json_writer *writer, json_t *root, const json_t *line, const char *document)
{
    const json_t *given = json_object_get(line, document);
    json_t *copy = json_is_object(given) ? json_deep_copy(given) : NULL;
    if (copy == NULL) {
        return;
    }
    for (size_t i = 0; i < sizeof secrets / sizeof secrets[0]; i++) {
        const struct secret *one = &secrets[i];
        json_t *place = one->inner == NULL ? copy : json_object_get(copy, one->inner);
        const char *text = strcmp(one->document, document) == 0 ? text_in(place, one->name) : NULL;
        if (text == NULL || text[0] == '\0') {
            continue; /* empty: the part is off */
        }
        json_t *instead = one->instead == NULL ? json_null() : json_string(one->instead);
        if (json_object_set_new(place, one->name, instead) != 0) {
            writer->code = MS_ENOMEM;
        }
    }
    ms__json_put_value(writer, root, document, copy);
}

/* Equal for runs whose graphs are: of the text that is sent. */
static void put_digest(ms__json_writer *writer, json_t *root)
{
    const json_t *graph = json_object_get(root, "graph");
    char *text = graph != NULL ? ms__json_text(graph, true) : NULL;
    if (text != NULL) {
        char digest[40];
        snprintf(digest, sizeof digest, "xxh3-%016" PRIx64, XXH3_64bits(text, strlen(text)));
        ms__json_put_string(writer, root, "graph_digest", digest);
    }
    ms_free(text);
}

/* Names and versions of packages: texts only. */
static void put_versions(ms__json_writer *writer, json_t *root, const json_t *versions)
{
    const char *name;
    json_t *value;
    json_t *object = json_is_object(versions) ? ms__json_put_object(writer, root, "versions") : NULL;
    if (object != NULL) {
        json_object_foreach((json_t *)(uintptr_t)versions, name, value)
        {
            put_text(writer, object, name, json_string_value(value));
        }
    }
}

char *ms__run_begin_text(const json_t *line, const ms__push_options *options, const char *name)
{
    ms__json_writer writer = {0};
    const json_t *plan = json_object_get(line, "plan"), *run = json_object_get(line, "run");
    const json_t *pressure = json_object_get(plan, "pressure"), *predicted = json_object_get(plan, "predicted");
    json_t *root = ms__json_new(&writer);
    put_text(&writer, root, "project", first_text(options->project, text_in(run, "project"), NULL));
    put_text(&writer, root, "name", first_text(options->name, text_in(run, "name"), name));
    put_text(&writer, root, "model", first_text(text_in(plan, "model"), text_in(run, "model"), "unknown"));
    put_text(&writer, root, "machine", text_in(run, "machine"));
    put_versions(&writer, root, json_object_get(run, "versions"));
    put_number(&writer, root, "budget_bytes", json_object_get(pressure, "allowed_bytes"));
    put_number(&writer, root, "predicted_peak_bytes", json_object_get(predicted, "peak_bytes"));
    put_number(&writer, root, "predicted_step_ns", json_object_get(predicted, "step_ns"));
    for (size_t i = 0; i < sizeof documents / sizeof documents[0]; i++) {
        put_document(&writer, root, line, documents[i]);
    }
    put_digest(&writer, root);
    char *text = writer.code == MS_OK ? ms__json_text(root, true) : NULL;
    json_decref(root);
    return text;
}

static void put_counters(ms__json_writer *writer, json_t *root, const json_t *counters)
{
    json_t *object = json_is_object(counters) ? ms__json_put_object(writer, root, "counters") : NULL;
    for (int id = 0; object != NULL && id < MS_COUNTER_COUNT; id++) {
        const char *name = ms_counter_name((ms_counter)id);
        put_number(writer, object, name, json_object_get(counters, name));
    }
}

char *ms__run_end_text(const json_t *line)
{
    static const char *const outcomes[] = {"finished", "failed", "infeasible", "stopped"};
    ms__json_writer writer = {0};
    json_t *root = ms__json_new(&writer);
    const char *told = text_in(line, "outcome"), *outcome = "stopped";
    for (size_t i = 0; told != NULL && i < sizeof outcomes / sizeof outcomes[0]; i++) {
        outcome = strcmp(told, outcomes[i]) == 0 ? outcomes[i] : outcome;
    }
    ms__json_put_string(&writer, root, "outcome", outcome);
    put_counters(&writer, root, json_object_get(line, "counters"));
    char *text = writer.code == MS_OK ? ms__json_text(root, true) : NULL;
    json_decref(root);
    return text;
}

char *ms__run_begin_smaller(const char *begin_text)
{
    json_t *tree = NULL;
    ms__json_at root;
    char *text = NULL;
    if (ms__json_parse(begin_text, strlen(begin_text), "run", &tree, &root, NULL) != MS_OK) {
        return NULL;
    }
    for (size_t i = 0; text == NULL && i < sizeof documents / sizeof documents[0]; i++) {
        text = json_object_del(tree, documents[i]) == 0 ? ms__json_text(root.value, true) : NULL;
    }
    json_decref(tree);
    return text;
}
