/* Headers of safetensors files: what they say, and that every wrong one is refused with the file's name. */
#include "memscale/checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include "test_common.h"

typedef struct file {
    unsigned char bytes[2048];
    size_t length;
} file;

/* A file with this header and `data` bytes after it. */
static file file_of(const char *header, size_t data)
{
    file made = {.length = 8 + strlen(header) + data};
    assert_true(made.length <= sizeof made.bytes);
    made.bytes[0] = (unsigned char)(strlen(header) & 0xff);
    made.bytes[1] = (unsigned char)(strlen(header) >> 8);
    memcpy(made.bytes + 8, header, strlen(header));
    return made;
}

static int parse(const file *from, ms_checkpoint **out, ms_error *err)
{
    return ms_checkpoint_parse("shard", from->bytes, from->length, from->length, out, err);
}

#define TWO \
    "{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[24,26]}," \
    "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}   "

static void tensors_come_in_the_order_of_their_bytes(void **state)
{
    (void)state;
    ms_error err;
    ms_checkpoint *checkpoint = NULL;
    file two = file_of(TWO, 26);
    uint64_t first = two.length - 26;
    assert_ms_ok(parse(&two, &checkpoint, &err), err);
    assert_int_equal(ms_checkpoint_count(checkpoint), 2);
    assert_int_equal(ms_checkpoint_file_bytes(checkpoint), two.length);
    const ms_checkpoint_tensor *a = ms_checkpoint_tensor_at(checkpoint, 0), *b = ms_checkpoint_tensor_at(checkpoint, 1);
    assert_string_equal(a->name, "a");
    assert_string_equal(a->dtype, "F32");
    assert_int_equal(a->rank, 2);
    assert_int_equal(a->shape[1], 3);
    assert_int_equal(a->offset_bytes, first);
    assert_int_equal(a->size_bytes, 24);
    assert_string_equal(b->name, "b");
    assert_int_equal(b->rank, 0);
    assert_int_equal(b->offset_bytes, first + 24);
    assert_null(ms_checkpoint_tensor_at(checkpoint, 2));
    ms_checkpoint_free(checkpoint);
}

static void assert_refused(const char *header, size_t data, int code, const char *text)
{
    ms_error err;
    ms_checkpoint *checkpoint = NULL;
    file wrong = file_of(header, data);
    assert_ms_fails(parse(&wrong, &checkpoint, &err), code, err, text);
    assert_non_null(strstr(err.text, "shard"));
    assert_null(checkpoint);
}

static void wrong_headers_are_refused(void **state)
{
    (void)state;
    assert_refused(TWO, 25, MS_EFORMAT, "truncated");
    assert_refused(TWO, 27, MS_EFORMAT, "too long");
    assert_refused("[]", 0, MS_EFORMAT, "");
    assert_refused("{\"a\":", 0, MS_EFORMAT, "");
    assert_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, MS_EFORMAT, "shape");
    assert_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, MS_EFORMAT,
                   "begins at byte 4");
    assert_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,4]}}", 8, MS_EFORMAT, "");
    assert_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, MS_EFORMAT, "two numbers");
    assert_refused("{\"a\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1, MS_ENOTSUP, "F4");
    assert_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1,
                   MS_ENOTSUP, "17 dimensions");
    assert_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", 0,
                   MS_EFORMAT, "shape");
    assert_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
                   "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
                   3, MS_EFORMAT, "b begins");
}

static void every_shorter_file_is_refused(void **state)
{
    (void)state;
    ms_error err;
    ms_checkpoint *checkpoint = NULL;
    file two = file_of(TWO, 26);
    for (size_t length = 0; length < two.length; length++) {
        int rc = ms_checkpoint_parse("shard", two.bytes, length, length, &checkpoint, &err);
        assert_ms_fails(rc, MS_EFORMAT, err, "shard");
    }
    two.bytes[7] = 1;
    assert_ms_fails(parse(&two, &checkpoint, &err), MS_EFORMAT, err, "not a safetensors file");
}

static void files_are_opened_and_named_in_errors(void **state)
{
    (void)state;
    ms_error err;
    ms_checkpoint *checkpoint = NULL;
    char path[64];
    file two = file_of(TWO, 26);
    snprintf(path, sizeof path, "checkpoint.%d", (int)getpid());
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    assert_int_equal(write(fd, two.bytes, two.length), two.length);
    assert_ms_ok(ms_checkpoint_open(path, &checkpoint, &err), err);
    assert_int_equal(ms_checkpoint_count(checkpoint), 2);
    ms_checkpoint_free(checkpoint);
    assert_int_equal(ftruncate(fd, (off_t)two.length - 1), 0);
    assert_ms_fails(ms_checkpoint_open(path, &checkpoint, &err), MS_EFORMAT, err, path);
    assert_int_equal(ftruncate(fd, 5), 0);
    assert_ms_fails(ms_checkpoint_open(path, &checkpoint, &err), MS_EFORMAT, err, path);
    close(fd);
    unlink(path);
    assert_ms_fails(ms_checkpoint_open(path, &checkpoint, &err), MS_ESYSTEM, err, path);
    assert_ms_fails(ms_checkpoint_open(".", &checkpoint, &err), MS_ESYSTEM, err, "opening .");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_come_in_the_order_of_their_bytes),
        cmocka_unit_test(wrong_headers_are_refused),
        cmocka_unit_test(every_shorter_file_is_refused),
        cmocka_unit_test(files_are_opened_and_named_in_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
