/*
 * An executor over the memory tier with one open frame of a layer whose tensors move, for the tests of extents.
 */
#ifndef MS_TEST_EXTENTS_FIXTURE_H
#define MS_TEST_EXTENTS_FIXTURE_H

#include "double_host.h"

enum { BYTES = 8192 }; /* of a storage */

typedef struct fixture {
    host host;
    ms_execute *execute;
    ms_frame *frame;
    ms_error err;
} fixture;

/* For cmocka. Closing asserts that nothing is left. */
int open_fixture(void **state);
int close_fixture(void **state);

void set_windows(fixture *f, uint64_t write_bytes, uint64_t read_bytes);
void open_frame(fixture *f);

/* NULL if the tier refused it: the reference is then the test's again. */
ms_extent *store(fixture *f, storage *item, uint64_t version);
/* Storages that only their extents hold; number i has the bytes of the number i. */
void store_apart(fixture *f, ms_extent **extents, unsigned count);
/* Waits for the end of all stores. */
void settle(fixture *f);
/* Takes the bytes; returns whether they are those of `seed`. */
bool take(fixture *f, ms_extent *extent, uint64_t *mark, unsigned seed);

uint64_t counter(fixture *f, ms_counter id);

#endif
