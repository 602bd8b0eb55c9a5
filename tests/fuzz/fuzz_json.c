/*
 * The JSON reader and writer on any bytes: an accepted text is written, read back and written again to the same text,
 * and no memory leaks.
 */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void touch_members(const ms__json_at *root)
{
    static const char *const names[] = {"version", "layers", "name"};
    uint64_t number;
    const char *text;
    bool flag;
    double real;
    ms__json_at inner, item;
    (void)!ms__json_version(root, 1, 1, &number);
    (void)!ms__json_only(root, names, 3);
    (void)!ms__json_string(root, "name", &text);
    (void)!ms__json_bool(root, "flag", &flag);
    (void)!ms__json_f64(root, "real", -1, 1, &real);
    if (ms__json_array(root, "layers", &inner) == MS_OK) {
        for (size_t i = 0; i < ms__json_count(&inner); i++) {
            (void)!ms__json_item_u64(&inner, i, 0, 100, &number);
            if (ms__json_item_object(&inner, i, &item) == MS_OK) {
                (void)!ms__json_u64(&item, "bytes", 1, UINT64_MAX, &number);
            }
        }
    }
}

/* Numbers beyond 17 digits change at the first reading, never at the second. */
static char *read_and_write(const char *text, size_t size)
{
    json_t *tree;
    ms__json_at root;
    ms_error err;
    if (ms__json_parse(text, size, "fuzz", &tree, &root, &err) != MS_OK) {
        return NULL;
    }
    touch_members(&root);
    char *written = ms__json_text(tree, false);
    json_decref(tree);
    if (written == NULL) {
        abort();
    }
    return written;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t blocks = ms_memory_live_blocks();
    char *first = read_and_write((const char *)data, size);
    if (first != NULL) {
        char *second = read_and_write(first, strlen(first));
        if (second == NULL || strcmp(first, second) != 0) {
            abort();
        }
        ms_free(second);
        ms_free(first);
    }
    if (ms_memory_live_blocks() != blocks) {
        abort();
    }
    return 0;
}
