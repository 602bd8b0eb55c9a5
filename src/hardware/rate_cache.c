/*
 * Keeps measured rates between runs, in a small JSON file for each processor, disk and GPU. A file is replaced as a whole,
 * so that processes that start together do not damage it. Called by hardware.c only. If a process can't write files, it
 * logs one warning.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/json.h"
#include "base/os/file.h"
#include "hardware/probe.h"

enum { FILE_MOST_BYTES = 64 << 10, RATES_MOST = 8 };

/* Bounds of any rate, in bytes, operations or evaluations a second. */
#define RATE_LEAST UINT64_C(1000)
#define RATE_MOST UINT64_C(10000000000000000)

static bool file_path(const char *dir, const char *kind, const char *key, char *out, size_t size)
{
    unsigned long long hash = XXH3_64bits(key, strlen(key));
    int length = snprintf(out, size, "%s/rates-%s-%016llx.json", dir, kind, hash);
    return length > 0 && (size_t)length < size;
}

static int read_rates(const ms__json_at *root, const char *key, const ms__rate *rates, size_t count)
{
    ms__json_at object;
    const char *found_key;
    uint64_t found[RATES_MOST];
    int rc =
        count <= RATES_MOST ? ms__json_version(root, 1, 1, NULL) : ms__json_fail(root, MS_EINVAL, "has too many rates");
    if (rc == MS_OK) {
        rc = ms__json_string(root, "key", &found_key);
    }
    if (rc == MS_OK && strcmp(found_key, key) != 0) {
        rc = ms__json_fail(root, MS_EFORMAT, "is of something else");
    }
    if (rc == MS_OK) {
        rc = ms__json_object(root, "rates", &object);
    }
    for (size_t i = 0; i < count && rc == MS_OK; i++) {
        rc = ms__json_u64(&object, rates[i].name, RATE_LEAST, RATE_MOST, &found[i]);
    }
    for (size_t i = 0; i < count && rc == MS_OK; i++) {
        *rates[i].value = found[i];
    }
    return rc;
}

bool ms__rate_cache_load(const char *dir, const char *kind, const char *key, const ms__rate *rates, size_t count)
{
    char path[MS_PATH_MAX];
    char *text = NULL;
    size_t length;
    json_t *tree;
    ms__json_at root;
    ms_error err;
    if (!file_path(dir, kind, key, path, sizeof path) ||
        ms__file_read_own_text(path, FILE_MOST_BYTES, &text, &length, NULL) != MS_OK) {
        return false;
    }
    int rc = ms__json_parse(text, length, "measured rates", &tree, &root, &err);
    ms_free(text);
    if (rc == MS_OK) {
        rc = read_rates(&root, key, rates, count);
        json_decref(tree);
    }
    if (rc != MS_OK) {
        ms_log(MS_LOG_DEBUG, "%s is not used: %s", path, err.text);
    }
    return rc == MS_OK;
}

static int write_rates(const char *path, const char *dir, const char *key, const ms__rate *rates, size_t count,
                       ms_error *err)
{
    ms__json_writer writer = {0};
    json_t *root = ms__json_new(&writer);
    ms__json_put_u64(&writer, root, "version", 1);
    ms__json_put_string(&writer, root, "key", key);
    json_t *object = ms__json_put_object(&writer, root, "rates");
    for (size_t i = 0; i < count; i++) {
        ms__json_put_u64(&writer, object, rates[i].name, *rates[i].value);
    }
    char *text = NULL;
    int rc = ms__json_finish(&writer, root, "measured rates", &text, err);
    if (rc == MS_OK) {
        rc = ms__directory_make(dir, err);
    }
    if (rc == MS_OK) {
        rc = ms__file_replace_text(path, text, strlen(text), err);
    }
    ms_free(text);
    return rc;
}

void ms__rate_cache_save(const char *dir, const char *kind, const char *key, const ms__rate *rates, size_t count)
{
    static _Atomic bool has_said; /* a folder that can't be written fails for every kind of rate */
    char path[MS_PATH_MAX];
    ms_error err;
    if (file_path(dir, kind, key, path, sizeof path) && write_rates(path, dir, key, rates, count, &err) != MS_OK) {
        ms_log(atomic_exchange(&has_said, true) ? MS_LOG_DEBUG : MS_LOG_WARNING,
               "measured rates are not kept for the next run: %s", err.text);
    }
}
