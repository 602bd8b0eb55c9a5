/* Spill files have no name and no other reader; reads and writes resume and
 * report; small files are replaced whole. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/file.h"
#include "test_common.h"

enum { BLOCK_BYTES = 1 << 20 };

static char directory[64];
static ms_error err;

static int make_directory(void **state)
{
    (void)state;
    /* A place in the build folder, because /tmp is a tmpfs on many machines. */
    snprintf(directory, sizeof directory, "memscale-file-XXXXXX");
    return mkdtemp(directory) == NULL;
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    return remove(path);
}

static int remove_directory(void **state)
{
    (void)state;
    ms_fault_disarm_all();
    return nftw(directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static int entries_in(const char *path)
{
    DIR *stream = opendir(path);
    int count = 0;
    while (readdir(stream) != NULL) {
        count++;
    }
    closedir(stream);
    return count - 2; /* . and .. */
}

static unsigned char *aligned_block(void)
{
    return aligned_alloc(4096, BLOCK_BYTES);
}

static void fill(unsigned char *block, unsigned seed)
{
    for (size_t i = 0; i < BLOCK_BYTES; i++) {
        block[i] = (unsigned char)(i * 131 + i / 4096 * 7 + seed);
    }
}

/* ---- opening ------------------------------------------------------------ */

static void check_unnamed(void)
{
    ms__file file = MS__FILE_CLOSED;
    assert_ms_ok(ms__file_open_unnamed(directory, true, &file, &err), err);
    struct stat info;
    assert_int_equal(fstat(file.fd, &info), 0);
    assert_int_equal(info.st_nlink, 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_int_equal(fcntl(file.fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    assert_int_equal((fcntl(file.fd, F_GETFL) & O_DIRECT) != 0, file.is_direct);
    assert_true(file.align_bytes >= 4096);
    assert_int_equal(entries_in(directory), 0);
    ms__file_close(&file);
    ms__file_close(&file);
    assert_int_equal(file.fd, -1);
}

static void spill_files_have_no_name_and_mode_0600(void **state)
{
    (void)state;
    check_unnamed();
}

static void without_o_tmpfile_the_name_is_removed_at_once(void **state)
{
    (void)state;
    static const int answers[] = {EOPNOTSUPP, EISDIR, EINVAL};
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        ms_fault_arm(MS_FAULT_OPEN, 1, answers[i]);
        check_unnamed();
        assert_int_equal(ms_fault_passed(MS_FAULT_OPEN), 2);
    }
}

static void a_directory_that_cannot_be_used_is_an_error(void **state)
{
    (void)state;
    ms__file file;
    assert_ms_fails(ms__file_open_unnamed("/nowhere/at/all", true, &file, &err), MS_ESYSTEM, err, "/nowhere/at/all");
    assert_int_equal(err.system_errno, ENOENT);
    ms_fault_arm(MS_FAULT_OPEN, 1, EROFS);
    assert_ms_fails(ms__file_open_unnamed(directory, true, &file, &err), MS_ESYSTEM, err, directory);
    ms_fault_arm(MS_FAULT_OPEN, 1, ENOSPC);
    assert_ms_fails(ms__file_open_unnamed(directory, true, &file, &err), MS_ENOSPC, err, directory);
}

static void space_is_reserved_or_refused(void **state)
{
    (void)state;
    ms__file file;
    assert_ms_ok(ms__file_open_unnamed(directory, false, &file, &err), err);
    assert_ms_ok(ms__file_reserve(&file, BLOCK_BYTES, &err), err);
    struct stat info;
    fstat(file.fd, &info);
    assert_int_equal(info.st_size, BLOCK_BYTES);
    ms_fault_arm(MS_FAULT_OPEN, 1, ENOSPC);
    assert_ms_fails(ms__file_reserve(&file, 2 * BLOCK_BYTES, &err), MS_ENOSPC, err, "2.10 MB");
    ms_fault_arm(MS_FAULT_OPEN, 1, EOPNOTSUPP);
    assert_ms_ok(ms__file_reserve(&file, 3 * BLOCK_BYTES, &err), err);
    fstat(file.fd, &info);
    assert_int_equal(info.st_size, 3 * BLOCK_BYTES);
    assert_ms_ok(ms__file_reserve(&file, 0, &err), err);
    assert_ms_fails(ms__file_reserve(&file, UINT64_MAX, &err), MS_EOVERFLOW, err, "reserving");
    ms__file_close(&file);
}

/* ---- moving bytes ------------------------------------------------------- */

/* Writes and reads one block under whatever is armed, and compares. */
static void round_trip(bool direct, unsigned seed)
{
    ms__file file;
    unsigned char *out = aligned_block();
    unsigned char *in = aligned_block();
    fill(out, seed);
    memset(in, 0, BLOCK_BYTES);
    assert_ms_ok(ms__file_open_unnamed(directory, direct, &file, &err), err);
    assert_ms_ok(ms__file_write(&file, out, BLOCK_BYTES, 8192, &err), err);
    assert_ms_ok(ms__file_read(&file, in, BLOCK_BYTES, 8192, &err), err);
    assert_memory_equal(in, out, BLOCK_BYTES);
    ms__file_close(&file);
    free(out);
    free(in);
}

static void what_is_written_is_read_back(void **state)
{
    (void)state;
    round_trip(true, 1);
    round_trip(false, 2);
}

static void short_moves_and_interruptions_resume(void **state)
{
    (void)state;
    for (uint64_t nth = 1; nth <= 4; nth++) {
        ms_fault_arm(MS_FAULT_SHORT, nth, 0);
        round_trip(nth % 2 == 0, 3);
        assert_true(ms_fault_passed(MS_FAULT_SHORT) >= (nth <= 2 ? 3 : 2));
        ms_fault_arm(MS_FAULT_SHORT, nth, 0);
        round_trip(nth % 2 != 0, 4);
        ms_fault_disarm_all();
    }
    ms_fault_arm(MS_FAULT_WRITE, 1, EINTR);
    ms_fault_arm(MS_FAULT_READ, 1, EINTR);
    round_trip(true, 5);
    assert_int_equal(ms_fault_passed(MS_FAULT_WRITE), 2);
    assert_int_equal(ms_fault_passed(MS_FAULT_READ), 2);
}

static void failing_moves_are_errors(void **state)
{
    (void)state;
    ms__file file;
    unsigned char *block = aligned_block();
    fill(block, 1);
    assert_ms_ok(ms__file_open_unnamed(directory, true, &file, &err), err);
    ms_fault_arm(MS_FAULT_WRITE, 1, EIO);
    assert_ms_fails(ms__file_write(&file, block, BLOCK_BYTES, 0, &err), MS_EIO, err, "writing");
    assert_int_equal(err.system_errno, EIO);
    ms_fault_arm(MS_FAULT_WRITE, 1, ENOSPC);
    assert_ms_fails(ms__file_write(&file, block, BLOCK_BYTES, 0, &err), MS_ENOSPC, err, "writing");
    assert_ms_ok(ms__file_write(&file, block, BLOCK_BYTES, 0, &err), err);
    ms_fault_arm(MS_FAULT_READ, 1, EIO);
    assert_ms_fails(ms__file_read(&file, block, BLOCK_BYTES, 0, &err), MS_EIO, err, "reading");
    assert_ms_fails(ms__file_read(&file, block, BLOCK_BYTES, BLOCK_BYTES / 2, &err), MS_EIO, err, "too early");
    assert_ms_fails(ms__file_read(&file, block, BLOCK_BYTES, 2 * BLOCK_BYTES, &err), MS_EIO, err, "too early");
    ms__file_close(&file);
    assert_ms_fails(ms__file_write(&file, block, BLOCK_BYTES, 0, &err), MS_EIO, err, "writing");
    free(block);
}

static void a_flipped_bit_changes_exactly_one_bit(void **state)
{
    (void)state;
    ms__file file;
    unsigned char *out = aligned_block();
    unsigned char *in = aligned_block();
    fill(out, 9);
    assert_ms_ok(ms__file_open_unnamed(directory, false, &file, &err), err);
    assert_ms_ok(ms__file_write(&file, out, BLOCK_BYTES, 0, &err), err);
    ms_fault_arm(MS_FAULT_FLIP, 1, 0);
    assert_ms_ok(ms__file_read(&file, in, BLOCK_BYTES, 0, &err), err);
    int bits = 0;
    for (size_t i = 0; i < BLOCK_BYTES; i++) {
        bits += __builtin_popcount((unsigned)(in[i] ^ out[i]));
    }
    assert_int_equal(bits, 1);
    ms__file_close(&file);
    free(out);
    free(in);
}

/* ---- small files -------------------------------------------------------- */

static void texts_are_replaced_whole(void **state)
{
    (void)state;
    char path[128];
    char *text;
    size_t length;
    snprintf(path, sizeof path, "%s/cache.json", directory);
    assert_ms_ok(ms__file_write_text(path, "first", 5, &err), err);
    ms_fault_arm(MS_FAULT_WRITE, 1, ENOSPC);
    assert_ms_fails(ms__file_write_text(path, "second", 6, &err), MS_ENOSPC, err, "writing");
    ms_fault_arm(MS_FAULT_OPEN, 1, EACCES);
    assert_ms_fails(ms__file_write_text(path, "third", 5, &err), MS_ESYSTEM, err, "cache.json");
    ms_fault_disarm_all();
    assert_int_equal(entries_in(directory), 1);
    uint64_t blocks = ms_memory_live_blocks();
    assert_ms_ok(ms__file_read_text(path, 100, &text, &length, &err), err);
    assert_string_equal(text, "first");
    assert_int_equal(length, 5);
    ms_free(text);
    assert_ms_fails(ms__file_read_text(path, 4, &text, &length, &err), MS_EFORMAT, err, "more than 4");
    ms_fault_arm(MS_FAULT_READ, 1, EIO);
    assert_ms_fails(ms__file_read_text(path, 100, &text, &length, &err), MS_ESYSTEM, err, "reading");
    ms_fault_arm(MS_FAULT_ALLOC, 1, ENOMEM);
    assert_ms_fails(ms__file_read_text(path, 100, &text, &length, &err), MS_ENOMEM, err, "memory");
    assert_int_equal(ms_memory_live_blocks(), blocks);
}

/* A pipe isn't replaced by a file, and a write through a link goes to the link's target. */
static void what_is_no_file_is_written_to(void **state)
{
    (void)state;
    char path[128], target[128], back[16] = "";
    char *text;
    size_t length;
    struct stat info;
    snprintf(path, sizeof path, "%s/pipe", directory);
    assert_int_equal(mkfifo(path, 0600), 0);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_ms_ok(ms__file_write_text(path, "picture", 7, &err), err);
    assert_int_equal(read(fd, back, sizeof back), 7);
    assert_string_equal(back, "picture");
    ms_fault_arm(MS_FAULT_WRITE, 1, ENOSPC);
    assert_ms_fails(ms__file_write_text(path, "second", 6, &err), MS_ENOSPC, err, "writing");
    ms_fault_disarm_all();
    assert_int_equal(lstat(path, &info), 0);
    assert_true(S_ISFIFO(info.st_mode));
    close(fd);
    snprintf(target, sizeof target, "%s/target", directory);
    snprintf(path, sizeof path, "%s/link", directory);
    assert_ms_ok(ms__file_write_text(target, "a longer text", 13, &err), err);
    assert_int_equal(symlink("target", path), 0);
    assert_ms_ok(ms__file_write_text(path, "new", 3, &err), err);
    assert_ms_ok(ms__file_read_text(target, 100, &text, &length, &err), err);
    assert_string_equal(text, "new");
    ms_free(text);
    assert_int_equal(lstat(path, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    assert_int_equal(entries_in(directory), 3);
}

static void long_texts_are_read_whole(void **state)
{
    (void)state;
    enum { LENGTH = 100000 };
    char path[128];
    char *text = malloc(LENGTH);
    char *back;
    size_t length;
    for (size_t i = 0; i < LENGTH; i++) {
        text[i] = (char)('a' + i % 26);
    }
    snprintf(path, sizeof path, "%s/long", directory);
    assert_ms_ok(ms__file_write_text(path, text, LENGTH, &err), err);
    assert_ms_ok(ms__file_read_text(path, LENGTH, &back, &length, &err), err);
    assert_int_equal(length, LENGTH);
    assert_memory_equal(back, text, LENGTH);
    assert_int_equal(back[LENGTH], '\0');
    char small[16];
    assert_true(ms__file_read_small(path, small, sizeof small));
    assert_string_equal(small, "abcdefghijklmno");
    assert_false(ms__file_read_small("/nowhere", small, sizeof small));
    ms_free(back);
    free(text);
}

static void directories_are_made_with_their_parents(void **state)
{
    (void)state;
    char path[128];
    struct stat info;
    snprintf(path, sizeof path, "%s/a/b/c", directory);
    assert_ms_ok(ms__directory_make(path, &err), err);
    assert_ms_ok(ms__directory_make(path, &err), err);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0700);
    snprintf(path, sizeof path, "%s/file", directory);
    assert_ms_ok(ms__file_write_text(path, "x", 1, &err), err);
    assert_ms_fails(ms__directory_make(path, &err), MS_ESYSTEM, err, path);
    snprintf(path, sizeof path, "%s/file/below", directory);
    assert_ms_fails(ms__directory_make(path, &err), MS_ESYSTEM, err, path);
    assert_ms_fails(ms__directory_make("", &err), MS_ESYSTEM, err, "directory");
}

static void file_systems_tell_what_they_are(void **state)
{
    (void)state;
    ms__filesystem found;
    assert_ms_ok(ms__filesystem_of(directory, &found, &err), err);
    assert_true(found.total_bytes >= found.free_bytes);
    assert_true(found.total_bytes > 0);
    assert_true(strlen(found.type) > 0);
    if (access("/dev/shm", F_OK) == 0) {
        assert_ms_ok(ms__filesystem_of("/dev/shm", &found, &err), err);
        assert_string_equal(found.type, "tmpfs");
        assert_true(found.is_memory);
    }
    assert_ms_ok(ms__filesystem_of("/proc", &found, &err), err);
    assert_false(found.is_memory);
    assert_ms_fails(ms__filesystem_of("/nowhere", &found, &err), MS_ESYSTEM, err, "/nowhere");
}

#define IN_DIRECTORY(test) cmocka_unit_test_setup_teardown(test, make_directory, remove_directory)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_DIRECTORY(spill_files_have_no_name_and_mode_0600),
        IN_DIRECTORY(without_o_tmpfile_the_name_is_removed_at_once),
        IN_DIRECTORY(a_directory_that_cannot_be_used_is_an_error),
        IN_DIRECTORY(space_is_reserved_or_refused),
        IN_DIRECTORY(what_is_written_is_read_back),
        IN_DIRECTORY(short_moves_and_interruptions_resume),
        IN_DIRECTORY(failing_moves_are_errors),
        IN_DIRECTORY(a_flipped_bit_changes_exactly_one_bit),
        IN_DIRECTORY(texts_are_replaced_whole),
        IN_DIRECTORY(what_is_no_file_is_written_to),
        IN_DIRECTORY(long_texts_are_read_whole),
        IN_DIRECTORY(directories_are_made_with_their_parents),
        IN_DIRECTORY(file_systems_tell_what_they_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
