/*
 * Reads and writes the user's configuration. One table holds every field with its kind and bounds. The Python
 * `Config` and the program use it, so that a bad value has one message.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/names.h"
#include "memscale/config.h"

#define BYTES_PER_GB 1e9
/* 1e15 bytes: the bytes of every smaller number of GB are exact in a double. */
#define GB_MOST 1e6

static const char *const mode_names[MS_MODE_COUNT] = {"conservative", "balanced", "aggressive"};

const char *ms_mode_name(ms_mode mode)
{
    return (unsigned)mode < MS_MODE_COUNT ? mode_names[mode] : "unknown";
}

int ms_mode_parse(const char *name, ms_mode *mode)
{
    for (int i = 0; i < MS_MODE_COUNT; i++) {
        if (strcmp(name, mode_names[i]) == 0) {
            *mode = (ms_mode)i;
            return MS_OK;
        }
    }
    return MS_EINVAL;
}

void ms_config_default(ms_config *config)
{
    *config = (ms_config){
        .mode = MS_MODE_BALANCED,
        .enable_checkpointing = true,
        .enable_offloading = true,
        .use_static_profiling = true,
        .use_empirical_fallback = true,
        .enable_logging = true,
        .async_offload = true,
        .warmup_steps = 2,
        .target_utilization_permille = 850,
        .memory_budget_bytes = MS_UNSET,
        .max_cpu_offload_bytes = MS_UNSET,
        .max_disk_offload_bytes = MS_UNSET,
        .observability_port = -1,
        .pinned_pool_bytes = MS_UNSET,
    };
}

/* ---- the fields --------------------------------------------------------- */

typedef enum field_kind {
    FIELD_MODE,        /* ms_mode */
    FIELD_BOOL,        /* bool */
    FIELD_BOOL_OR_ON,  /* the same, null is true */
    FIELD_GB_POSITIVE, /* uint64_t bytes, null is MS_UNSET */
    FIELD_GB_CAP,      /* the same, and 0 is allowed */
    FIELD_SHARE,       /* uint32_t permille of a number in (0, 1] */
    FIELD_COUNT,       /* uint32_t in [1, most] */
    FIELD_COUNT_OR_0,  /* the same, null is 0 */
    FIELD_PORT,        /* int32_t in [1, most], null is -1 */
    FIELD_PATH,        /* char[MS_PATH_MAX], null is "" */
    FIELD_ASYNC        /* the object of async_fields, null is its defaults */
} field_kind;

typedef struct field {
    const char *name;
    size_t offset; /* in ms_config */
    field_kind kind;
    uint32_t most;
} field;

#define AT(member) offsetof(ms_config, member)

static const field async_fields[] = {
    {"pinned_pool_gb", AT(pinned_pool_bytes), FIELD_GB_POSITIVE, 0},
    {"prefetch_depth", AT(prefetch_depth), FIELD_COUNT_OR_0, 1024},
    {"num_streams", AT(num_streams), FIELD_COUNT_OR_0, 64},
    {"debug", AT(async_debug), FIELD_BOOL, 0},
};

/* In the published order. */
static const field fields[] = {
    {"mode", AT(mode), FIELD_MODE, 0},
    {"enable_checkpointing", AT(enable_checkpointing), FIELD_BOOL, 0},
    {"enable_offloading", AT(enable_offloading), FIELD_BOOL, 0},
    {"enable_tiling", AT(enable_tiling), FIELD_BOOL, 0},
    {"use_mixed_precision", AT(use_mixed_precision), FIELD_BOOL, 0},
    {"use_8bit_optimizer", AT(use_8bit_optimizer), FIELD_BOOL, 0},
    {"max_cpu_offload_gb", AT(max_cpu_offload_bytes), FIELD_GB_CAP, 0},
    {"target_gpu_utilization", AT(target_utilization_permille), FIELD_SHARE, 0},
    {"force_optimize", AT(force_optimize), FIELD_BOOL, 0},
    {"use_static_profiling", AT(use_static_profiling), FIELD_BOOL, 0},
    {"use_empirical_fallback", AT(use_empirical_fallback), FIELD_BOOL, 0},
    {"warmup_steps", AT(warmup_steps), FIELD_COUNT, 1000},
    {"enable_logging", AT(enable_logging), FIELD_BOOL, 0},
    {"log_file", AT(log_file), FIELD_PATH, 0},
    {"observability_port", AT(observability_port), FIELD_PORT, 65535},
    {"verify_correctness", AT(verify_correctness), FIELD_BOOL, 0},
    {"strict_budget", AT(strict_budget), FIELD_BOOL, 0},
    {"async_offload", AT(async_offload), FIELD_BOOL_OR_ON, 0},
    {"async_config", 0, FIELD_ASYNC, 0},
    {"auto_policy", AT(auto_policy), FIELD_BOOL, 0},
    {"memory_budget_gb", AT(memory_budget_bytes), FIELD_GB_POSITIVE, 0},
    {"disk_offload_dir", AT(disk_offload_dir), FIELD_PATH, 0},
    {"max_disk_offload_gb", AT(max_disk_offload_bytes), FIELD_GB_CAP, 0},
};

#define COUNT_OF(table) (sizeof(table) / sizeof(table)[0])

static void *member(ms_config *config, const field *f)
{
    return (char *)config + f->offset;
}

static const void *const_member(const ms_config *config, const field *f)
{
    return (const char *)config + f->offset;
}

/* ---- refusals ----------------------------------------------------------- */

typedef struct value_text {
    char text[96];
} value_text;

static void copy_shortened(value_text *out, const char *text, size_t length)
{
    size_t kept = length;
    if (length >= sizeof out->text) {
        kept = sizeof out->text - sizeof "...";
        while (kept > 0 && ((unsigned char)text[kept] & 0xC0) == 0x80) {
            kept--; /* not inside a character */
        }
    }
    memcpy(out->text, text, kept);
    snprintf(out->text + kept, sizeof out->text - kept, "%s", kept < length ? "..." : "");
}

/*
 * A value as its Python user wrote it. Values that JSON can't hold (nan, any object) arrive as {"__repr__": text}; no
 * field accepts such an object, so the text is for messages only.
 */
static value_text value_as_written(const json_t *value)
{
    value_text out = {"a value"};
    const json_t *repr = json_object_get(value, "__repr__");
    if (json_is_string(repr) && json_object_size(value) == 1) {
        copy_shortened(&out, json_string_value(repr), json_string_length(repr));
        return out;
    }
    if (json_is_null(value) || json_is_boolean(value)) {
        const char *text = json_is_null(value) ? "None" : json_is_true(value) ? "True" : "False";
        copy_shortened(&out, text, strlen(text));
        return out;
    }
    char *text = ms__json_text(value, true);
    if (text != NULL) {
        size_t length = strlen(text);
        if (json_is_string(value) && length >= 2) {
            text[0] = text[length - 1] = '\'';
        }
        copy_shortened(&out, text, length);
        ms_free(text);
    }
    return out;
}

/* A field, its value, and the error that receives failures. */
typedef struct place {
    const char *prefix; /* "async_config." or "" */
    const field *field;
    const json_t *value;
    ms_error *err;
} place;

static int refuse(const place *at, const char *allowed)
{
    value_text value = value_as_written(at->value);
    return ms_fail(at->err, MS_ECONFIG, "%s%s: %s is not allowed; give %s", at->prefix, at->field->name, value.text,
                   allowed);
}

/* ---- reading one value -------------------------------------------------- */

static int read_mode(const place *at, ms_mode *mode)
{
    const char *text = json_string_value(at->value);
    if (text != NULL && ms_mode_parse(text, mode) == MS_OK) {
        return MS_OK;
    }
    return refuse(at, json_is_number(at->value)
                          ? "'conservative', 'balanced' or 'aggressive'; a budget is memory_budget_gb=..."
                          : "'conservative', 'balanced' or 'aggressive'");
}

static int read_bool(const place *at, bool *flag)
{
    if (!json_is_boolean(at->value)) {
        return refuse(at, "True or False");
    }
    *flag = json_is_true(at->value);
    return MS_OK;
}

static int read_bool_or_on(const place *at, bool *flag)
{
    if (json_is_null(at->value)) {
        *flag = true;
        return MS_OK;
    }
    return json_is_boolean(at->value) ? read_bool(at, flag) : refuse(at, "True, False or None");
}

static int read_gb(const place *at, bool allow_zero, uint64_t *bytes)
{
    if (json_is_null(at->value)) {
        *bytes = MS_UNSET;
        return MS_OK;
    }
    const char *allowed = allow_zero ? "a number of GB (1e9 bytes) of at least 0, or None"
                                     : "a positive number of GB (1e9 bytes) or None";
    if (!json_is_number(at->value)) {
        return refuse(at, allowed);
    }
    double gb = json_number_value(at->value);
    if (gb > GB_MOST) {
        return refuse(at, "at most 1000000 GB (1e9 bytes), or None");
    }
    if (!(gb >= 0)) {
        return refuse(at, allowed);
    }
    uint64_t rounded = (uint64_t)llround(gb * BYTES_PER_GB);
    if (rounded == 0 && (!allow_zero || gb > 0)) {
        return refuse(at, allowed);
    }
    *bytes = rounded;
    return MS_OK;
}

static int read_share(const place *at, uint32_t *permille)
{
    double share = json_number_value(at->value); /* 0 for other types */
    if (!(share > 0 && share <= 1)) {
        return refuse(at, "a number above 0 and at most 1");
    }
    long rounded = lround(share * 1000);
    *permille = rounded > 0 ? (uint32_t)rounded : 1;
    return MS_OK;
}

/* An integer in [1, field's most]; false for anything else. */
static bool is_count(const place *at, uint32_t *count)
{
    json_int_t value = json_integer_value(at->value); /* 0 for other types */
    if (value < 1 || value > (json_int_t)at->field->most) {
        return false;
    }
    *count = (uint32_t)value;
    return true;
}

static int read_count(const place *at, bool allow_none, uint32_t *count)
{
    if (allow_none && json_is_null(at->value)) {
        *count = 0;
        return MS_OK;
    }
    if (is_count(at, count)) {
        return MS_OK;
    }
    char allowed[64];
    snprintf(allowed, sizeof allowed, "an integer from 1 to %u%s", (unsigned)at->field->most,
             allow_none ? " or None" : "");
    return refuse(at, allowed);
}

static int read_port(const place *at, int32_t *port)
{
    uint32_t number;
    if (json_is_null(at->value)) {
        *port = -1;
    } else if (is_count(at, &number)) {
        *port = (int32_t)number;
    } else {
        return refuse(at, "a port from 1 to 65535 or None");
    }
    return MS_OK;
}

static int read_path(const place *at, char *path)
{
    if (json_is_null(at->value)) {
        path[0] = '\0';
        return MS_OK;
    }
    size_t length = json_string_length(at->value); /* 0 for other types */
    if (length == 0 || length >= MS_PATH_MAX) {
        return refuse(at, "a path of 1 to 4095 bytes or None");
    }
    memcpy(path, json_string_value(at->value), length + 1);
    return MS_OK;
}

/* ---- reading the document ----------------------------------------------- */

static int read_fields(const json_t *object, const field *table, size_t count, const char *prefix, ms_config *config,
                       ms_error *err);

static int read_async(const place *at, ms_config *config)
{
    if (json_is_null(at->value)) {
        return MS_OK;
    }
    if (!json_is_object(at->value) || json_object_get(at->value, "__repr__") != NULL) {
        return refuse(at, "an AsyncOffloadConfig or None");
    }
    return read_fields(at->value, async_fields, COUNT_OF(async_fields), "async_config.", config, at->err);
}

static int read_field(const place *at, ms_config *config)
{
    void *target = member(config, at->field);
    switch (at->field->kind) {
    case FIELD_MODE:
        return read_mode(at, target);
    case FIELD_BOOL:
        return read_bool(at, target);
    case FIELD_BOOL_OR_ON:
        return read_bool_or_on(at, target);
    case FIELD_GB_POSITIVE:
        return read_gb(at, false, target);
    case FIELD_GB_CAP:
        return read_gb(at, true, target);
    case FIELD_SHARE:
        return read_share(at, target);
    case FIELD_COUNT:
        return read_count(at, false, target);
    case FIELD_COUNT_OR_0:
        return read_count(at, true, target);
    case FIELD_PORT:
        return read_port(at, target);
    case FIELD_PATH:
        return read_path(at, target);
    case FIELD_ASYNC:
        return read_async(at, config);
    }
    return MS_EINVAL;
}

static const field *find_field(const field *table, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(table[i].name, name) == 0) {
            return &table[i];
        }
    }
    return NULL;
}

/* The most similar name so far. */
typedef struct likely {
    const char *name;
    uint32_t permille;
    bool is_field;
} likely;

static likely likely_field(const char *name, const field *table, size_t count)
{
    likely best = {.permille = MS__NAMES_ALIKE_PERMILLE - 1};
    for (size_t i = 0; i < count; i++) {
        uint32_t alike = ms__names_similarity_permille(name, table[i].name);
        if (alike > best.permille) {
            best = (likely){table[i].name, alike, true};
        }
    }
    return best;
}

/* The message suggests the likely field. */
static int refuse_name(const char *prefix, const char *name, const field *table, size_t count, ms_error *err)
{
    const char *meant = likely_field(name, table, count).name;
    return ms_fail(err, MS_ECONFIG, "%s%.64s: there is no such field%s%s%s", prefix, name,
                   meant != NULL ? "; did you mean " : "", meant != NULL ? meant : "", meant != NULL ? "?" : "");
}

static int read_fields(const json_t *object, const field *table, size_t count, const char *prefix, ms_config *config,
                       ms_error *err)
{
    /* The iterator functions take a pointer to non-const and change nothing. */
    json_t *members = (json_t *)(uintptr_t)object;
    for (void *it = json_object_iter(members); it; it = json_object_iter_next(members, it)) {
        const char *name = json_object_iter_key(it);
        place at = {prefix, find_field(table, count, name), json_object_iter_value(it), err};
        if (at.field == NULL && table == fields && strcmp(name, "version") == 0) {
            continue;
        }
        if (at.field == NULL) {
            return refuse_name(prefix, name, table, count, err);
        }
        int rc = read_field(&at, config);
        if (rc != MS_OK) {
            return rc;
        }
    }
    return MS_OK;
}

/* `best`, or a name among `arguments` that is more similar. */
static likely likelier_argument(const char *name, const char *const *arguments, likely best)
{
    for (size_t i = 0; arguments[i] != NULL; i++) {
        uint32_t alike = ms__names_similarity_permille(name, arguments[i]);
        if (alike > best.permille) {
            best = (likely){arguments[i], alike, false};
        }
    }
    return best;
}

char *ms_config_no_argument(const char *function, const char *name, const char *const *arguments)
{
    char text[512], hint[256];
    likely meant = likelier_argument(name, arguments, likely_field(name, fields, sizeof fields / sizeof fields[0]));
    if (meant.name == NULL) {
        snprintf(hint, sizeof hint, "; options are fields of Config: give config=memscale.Config(...)");
    } else if (!meant.is_field) {
        snprintf(hint, sizeof hint, "; did you mean %.64s?", meant.name);
    } else if (strcmp(name, meant.name) == 0) {
        snprintf(hint, sizeof hint, ", it is a field of Config: give config=memscale.Config(%.64s=...)", meant.name);
    } else {
        snprintf(hint, sizeof hint, "; did you mean config=memscale.Config(%.64s=...)?", meant.name);
    }
    snprintf(text, sizeof text, "memscale.%.64s() has no argument %.64s%s", function, name, hint);
    return ms_strdup(text);
}

int ms_config_parse(const char *json, ms_config *config, ms_error *err)
{
    json_t *tree;
    ms__json_at root;
    int rc = ms__json_parse(json, strlen(json), "config", &tree, &root, err);
    if (rc != MS_OK) {
        return rc;
    }
    ms_config parsed;
    ms_config_default(&parsed);
    rc = ms__json_version(&root, 1, 1, NULL);
    if (rc == MS_OK) {
        rc = read_fields(tree, fields, COUNT_OF(fields), "", &parsed, err);
    }
    if (rc == MS_OK) {
        *config = parsed;
    }
    json_decref(tree);
    return rc;
}

/* ---- writing ------------------------------------------------------------ */

static void write_fields(ms__json_writer *writer, json_t *object, const field *table, size_t count,
                         const ms_config *config);

static void write_count(ms__json_writer *writer, json_t *object, const char *name, int64_t value)
{
    if (value > 0) {
        ms__json_put_u64(writer, object, name, (uint64_t)value);
    } else {
        ms__json_put_null(writer, object, name);
    }
}

static void write_gb(ms__json_writer *writer, json_t *object, const char *name, uint64_t bytes)
{
    if (bytes == MS_UNSET) {
        ms__json_put_null(writer, object, name);
    } else {
        ms__json_put_f64(writer, object, name, (double)bytes / BYTES_PER_GB);
    }
}

static void write_field(ms__json_writer *writer, json_t *object, const field *f, const ms_config *config)
{
    const void *source = const_member(config, f);
    json_t *child;
    switch (f->kind) {
    case FIELD_MODE:
        ms__json_put_string(writer, object, f->name, ms_mode_name(*(const ms_mode *)source));
        break;
    case FIELD_BOOL:
    case FIELD_BOOL_OR_ON:
        ms__json_put_bool(writer, object, f->name, *(const bool *)source);
        break;
    case FIELD_GB_POSITIVE:
    case FIELD_GB_CAP:
        write_gb(writer, object, f->name, *(const uint64_t *)source);
        break;
    case FIELD_SHARE:
        ms__json_put_f64(writer, object, f->name, *(const uint32_t *)source / 1000.0);
        break;
    case FIELD_COUNT:
    case FIELD_COUNT_OR_0:
        write_count(writer, object, f->name, *(const uint32_t *)source);
        break;
    case FIELD_PORT:
        write_count(writer, object, f->name, *(const int32_t *)source);
        break;
    case FIELD_PATH:
        ms__json_put_string(writer, object, f->name, *(const char *)source ? source : NULL);
        break;
    case FIELD_ASYNC:
        child = ms__json_put_object(writer, object, f->name);
        write_fields(writer, child, async_fields, COUNT_OF(async_fields), config);
        break;
    }
}

static void write_fields(ms__json_writer *writer, json_t *object, const field *table, size_t count,
                         const ms_config *config)
{
    for (size_t i = 0; i < count; i++) {
        write_field(writer, object, &table[i], config);
    }
}

char *ms_config_to_json(const ms_config *config)
{
    ms__json_writer writer = {0};
    json_t *tree = ms__json_new(&writer);
    ms__json_put_u64(&writer, tree, "version", 1);
    write_fields(&writer, tree, fields, COUNT_OF(fields), config);
    char *text = NULL;
    return ms__json_finish(&writer, tree, "config", &text, NULL) == MS_OK ? text : NULL;
}
