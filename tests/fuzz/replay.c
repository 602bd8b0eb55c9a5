/*
 * Runs a fuzz target without a fuzzer: on every file of a corpus folder, and on truncated and damaged copies of each.
 * A fixed generator chooses them, so that a failure repeats. A failing target aborts the program.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    INPUT_MAX_BYTES = 1 << 20,
    CUTS_PER_INPUT = 128,
    DAMAGES_PER_INPUT = 512,
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* xorshift64: the same numbers on every machine. */
static uint64_t next_number(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* The target gets a block of exactly `size` bytes, so that a sanitizer sees reads past its end. */
static void run_exactly(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size != 0 ? size : 1);
    if (copy != NULL) {
        memcpy(copy, data, size);
        LLVMFuzzerTestOneInput(copy, size);
        free(copy);
    }
}

static void run_variants(uint8_t *data, size_t size)
{
    static const char pieces[] = "\"{}[]:,0-9.eE\\ \x80\xff";
    uint64_t state = 0x9E3779B97F4A7C15u ^ size;
    run_exactly(data, size);
    for (int i = 0; i < CUTS_PER_INPUT && size > 0; i++) {
        run_exactly(data, next_number(&state) % size);
    }
    for (int i = 0; i < DAMAGES_PER_INPUT && size > 0; i++) {
        size_t place = next_number(&state) % size;
        uint8_t before = data[place];
        uint64_t choice = next_number(&state);
        data[place] = choice % 2 ? (uint8_t)pieces[choice / 2 % (sizeof pieces - 1)] : (uint8_t)(choice >> 8);
        run_exactly(data, size);
        data[place] = before;
    }
}

static int run_file(const char *folder, const char *name)
{
    static uint8_t data[INPUT_MAX_BYTES];
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        return 1;
    }
    size_t size = fread(data, 1, sizeof data, file);
    fclose(file);
    run_variants(data, size);
    return 0;
}

int main(int argc, char **argv)
{
    struct dirent **entries = NULL;
    int count = argc == 2 ? scandir(argv[1], &entries, NULL, alphasort) : -1;
    int failures = 0;
    int runs = 0;
    if (count < 0) {
        fprintf(stderr, "usage: %s CORPUS_FOLDER\n", argv[0]);
        return 2;
    }
    for (int i = 0; i < count; i++) {
        if (entries[i]->d_name[0] != '.') {
            failures += run_file(argv[1], entries[i]->d_name);
            runs++;
        }
        free(entries[i]);
    }
    free(entries);
    printf("%d inputs replayed\n", runs);
    return failures > 0 || runs == 0;
}
