/*
 * Reads the header of a safetensors file and checks it against the file's size.
 */
#include "memscale/checkpoint.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/os/file.h"
#include "base/units.h"

enum {
    SIZE_BYTES = 8,                /* of the header's size, little endian */
    HEADER_MOST_BYTES = 100000000, /* the format's own limit */
};

struct ms_checkpoint {
    json_t *tree; /* holds names and types */
    ms_checkpoint_tensor *tensors;
    size_t count;
    uint64_t file_bytes;
};

typedef struct dtype {
    const char *name;
    uint64_t bytes;
} dtype;

static const dtype dtypes[] = {
    {"F32", 4},     {"BF16", 2},    {"F16", 2},  {"F64", 8},   {"I64", 8},         {"I32", 4},         {"I16", 2},
    {"I8", 1},      {"U8", 1},      {"BOOL", 1}, {"U16", 2},   {"U32", 4},         {"U64", 8},         {"F8_E4M3", 1},
    {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"C64", 8},  {"C128", 16}, {"F8_E4M3FNUZ", 1}, {"F8_E5M2FNUZ", 1},
};

/* ---- one tensor ----------------------------------------------------------- */

static int read_dtype(const ms__json_at *at, const char **name, uint64_t *bytes)
{
    int rc = ms__json_string(at, "dtype", name);
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes && rc == MS_OK; i++) {
        if (strcmp(*name, dtypes[i].name) == 0) {
            *bytes = dtypes[i].bytes;
            return MS_OK;
        }
    }
    return rc != MS_OK ? rc : ms__json_fail(at, MS_ENOTSUP, "tensors of type %s are not supported", *name);
}

/* Also multiplies `*bytes`, those of an element, by the number of elements. */
static int read_shape(const ms__json_at *at, ms_checkpoint_tensor *tensor, uint64_t *bytes)
{
    ms__json_at shape;
    int rc = ms__json_array(at, "shape", &shape);
    if (rc != MS_OK) {
        return rc;
    }
    tensor->rank = ms__json_count(&shape);
    if (tensor->rank > MS_CHECKPOINT_RANK_MOST) {
        return ms__json_fail(at, MS_ENOTSUP, "%zu dimensions", tensor->rank);
    }
    for (size_t i = 0; i < tensor->rank && rc == MS_OK; i++) {
        rc = ms__json_item_u64(&shape, i, 0, INT64_MAX, &tensor->shape[i]);
        *bytes = ms__mul_sat(*bytes, tensor->shape[i]);
    }
    return rc;
}

static int read_offsets(const ms__json_at *at, ms_checkpoint_tensor *tensor)
{
    ms__json_at offsets;
    uint64_t end = 0;
    int rc = ms__json_array(at, "data_offsets", &offsets);
    if (rc == MS_OK && ms__json_count(&offsets) != 2) {
        rc = ms__json_fail(&offsets, MS_EFORMAT, "expected two numbers");
    }
    if (rc == MS_OK) {
        rc = ms__json_item_u64(&offsets, 0, 0, INT64_MAX, &tensor->offset_bytes);
    }
    if (rc == MS_OK) {
        rc = ms__json_item_u64(&offsets, 1, tensor->offset_bytes, INT64_MAX, &end);
    }
    tensor->size_bytes = end - tensor->offset_bytes;
    return rc;
}

static int read_tensor(const ms__json_at *root, const char *name, ms_checkpoint_tensor *tensor)
{
    ms__json_at at;
    uint64_t bytes = 0;
    tensor->name = name;
    int rc = ms__json_object(root, name, &at);
    if (rc == MS_OK) {
        rc = read_dtype(&at, &tensor->dtype, &bytes);
    }
    if (rc == MS_OK) {
        rc = read_shape(&at, tensor, &bytes);
    }
    if (rc == MS_OK) {
        rc = read_offsets(&at, tensor);
    }
    if (rc == MS_OK && bytes != tensor->size_bytes) {
        rc = ms__json_fail(&at, MS_EFORMAT, "its shape needs %s, its offsets give %s", ms__text_bytes(bytes).text,
                           ms__text_bytes(tensor->size_bytes).text);
    }
    return rc;
}

/* ---- all tensors ------------------------------------------------------------ */

static int by_offset(const void *first, const void *second)
{
    const ms_checkpoint_tensor *a = first, *b = second;
    if (a->offset_bytes != b->offset_bytes) {
        return a->offset_bytes < b->offset_bytes ? -1 : 1;
    }
    return (a->size_bytes > b->size_bytes) - (a->size_bytes < b->size_bytes); /* empty tensors first */
}

/* Tensors must follow each other without a gap, and end where the file ends. Makes offsets count from the file's
 * beginning. */
static int place_tensors(ms_checkpoint *checkpoint, const ms__json_at *root, uint64_t data_bytes)
{
    uint64_t at = 0;
    uint64_t first = checkpoint->file_bytes - data_bytes;
    qsort(checkpoint->tensors, checkpoint->count, sizeof *checkpoint->tensors, by_offset);
    for (size_t i = 0; i < checkpoint->count; i++) {
        ms_checkpoint_tensor *tensor = &checkpoint->tensors[i];
        if (tensor->offset_bytes != at) {
            return ms__json_fail(root, MS_EFORMAT, "%s begins at byte %llu, the tensor before it ends at %llu",
                                 tensor->name, (unsigned long long)tensor->offset_bytes, (unsigned long long)at);
        }
        at += tensor->size_bytes; /* each is at most INT64_MAX, and the next one must begin there */
        tensor->offset_bytes += first;
    }
    if (at != data_bytes) {
        return ms__json_fail(root, MS_EFORMAT, "the header names %s of tensors, the file has %s: it is %s",
                             ms__text_bytes(at).text, ms__text_bytes(data_bytes).text,
                             at > data_bytes ? "truncated" : "too long");
    }
    return MS_OK;
}

static int read_tensors(ms_checkpoint *checkpoint, const ms__json_at *root, uint64_t data_bytes)
{
    const char *name;
    json_t *value;
    int rc = MS_OK;
    checkpoint->tensors = ms_calloc(ms__json_count(root) + 1, sizeof *checkpoint->tensors);
    if (checkpoint->tensors == NULL) {
        return ms__json_fail(root, MS_ENOMEM, "out of memory for %zu tensors", ms__json_count(root));
    }
    json_object_foreach(checkpoint->tree, name, value)
    {
        if (rc == MS_OK && strcmp(name, "__metadata__") != 0) {
            rc = read_tensor(root, name, &checkpoint->tensors[checkpoint->count++]);
        }
    }
    return rc == MS_OK ? place_tensors(checkpoint, root, data_bytes) : rc;
}

static int size_of_header(const char *name, const void *bytes, uint64_t file_bytes, uint64_t *header_bytes,
                          ms_error *err)
{
    const unsigned char *from = bytes;
    *header_bytes = 0;
    for (size_t i = 0; i < SIZE_BYTES; i++) {
        *header_bytes |= (uint64_t)from[i] << (8 * i);
    }
    if (*header_bytes > HEADER_MOST_BYTES) {
        return ms_fail(err, MS_EFORMAT, "%s: not a safetensors file, or its header is damaged", name);
    }
    if (*header_bytes > file_bytes - SIZE_BYTES) {
        return ms_fail(err, MS_EFORMAT, "%s: the file is truncated: its header has %s, the whole file %s", name,
                       ms__text_bytes(*header_bytes).text, ms__text_bytes(file_bytes).text);
    }
    return MS_OK;
}

static int too_short(const char *name, ms_error *err)
{
    return ms_fail(err, MS_EFORMAT, "%s: the file is truncated: it ends before its header", name);
}

int ms_checkpoint_parse(const char *name, const void *bytes, size_t length, uint64_t file_bytes, ms_checkpoint **out,
                        ms_error *err)
{
    uint64_t header_bytes;
    if (length < SIZE_BYTES || file_bytes < length) {
        return too_short(name, err);
    }
    int rc = size_of_header(name, bytes, file_bytes, &header_bytes, err);
    if (rc != MS_OK || header_bytes > length - SIZE_BYTES) {
        return rc != MS_OK ? rc : too_short(name, err);
    }
    ms_checkpoint *checkpoint = ms_calloc(1, sizeof *checkpoint);
    if (checkpoint == NULL) {
        return ms_fail(err, MS_ENOMEM, "%s: out of memory", name);
    }
    ms__json_at root;
    checkpoint->file_bytes = file_bytes;
    rc = ms__json_parse((const char *)bytes + SIZE_BYTES, (size_t)header_bytes, name, &checkpoint->tree, &root, err);
    if (rc == MS_OK) {
        rc = read_tensors(checkpoint, &root, file_bytes - SIZE_BYTES - header_bytes);
    }
    if (rc != MS_OK) {
        ms_checkpoint_free(checkpoint);
        return rc;
    }
    *out = checkpoint;
    return MS_OK;
}

/* Reads the header with its size; free `*bytes` with ms_free(). */
static int read_header(const char *path, const ms__file *file, uint64_t file_bytes, char **bytes, size_t *length,
                       ms_error *err)
{
    unsigned char size[SIZE_BYTES];
    uint64_t header_bytes;
    if (file_bytes < SIZE_BYTES) {
        return too_short(path, err);
    }
    int rc = ms__file_read(file, size, SIZE_BYTES, 0, err);
    if (rc == MS_OK) {
        rc = size_of_header(path, size, file_bytes, &header_bytes, err);
    }
    if (rc != MS_OK) {
        return rc;
    }
    *length = (size_t)header_bytes + SIZE_BYTES;
    *bytes = ms_malloc(*length);
    if (*bytes == NULL) {
        return ms_fail(err, MS_ENOMEM, "%s: out of memory for its header", path);
    }
    return ms__file_read(file, *bytes, *length, 0, err);
}

int ms_checkpoint_open(const char *path, ms_checkpoint **out, ms_error *err)
{
    ms__file file = MS__FILE_CLOSED;
    uint64_t file_bytes = 0;
    char *bytes = NULL;
    size_t length = 0;
    int rc = ms__file_open_to_read(path, &file, &file_bytes, err);
    if (rc == MS_OK) {
        rc = read_header(path, &file, file_bytes, &bytes, &length, err);
    }
    if (rc == MS_OK) {
        rc = ms_checkpoint_parse(path, bytes, length, file_bytes, out, err);
    }
    ms_free(bytes);
    ms__file_close(&file);
    return rc;
}

void ms_checkpoint_free(ms_checkpoint *checkpoint)
{
    if (checkpoint != NULL) {
        json_decref(checkpoint->tree);
        ms_free(checkpoint->tensors);
        ms_free(checkpoint);
    }
}

size_t ms_checkpoint_count(const ms_checkpoint *checkpoint)
{
    return checkpoint->count;
}

uint64_t ms_checkpoint_file_bytes(const ms_checkpoint *checkpoint)
{
    return checkpoint->file_bytes;
}

const ms_checkpoint_tensor *ms_checkpoint_tensor_at(const ms_checkpoint *checkpoint, size_t index)
{
    return index < checkpoint->count ? &checkpoint->tensors[index] : NULL;
}
