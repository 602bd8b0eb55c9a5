/* The cut of logits into chunks: small enough, and never a chunk that torch would sum
 * in another order. */
#include "memscale/loss.h"
#include "test_common.h"

static void chunks_are_small_and_never_short(void **state)
{
    (void)state;
    const uint64_t vocabularies[] = {1, 7, 1000, 50257, 128256, 20000000};
    for (size_t v = 0; v < sizeof vocabularies / sizeof vocabularies[0]; v++) {
        for (uint64_t tokens = 1; tokens < 3000; tokens += tokens < 300 ? 1 : 37) {
            for (uint32_t threads = 1; threads <= 64; threads *= 4) {
                uint64_t rows = ms_loss_chunk_rows(tokens, vocabularies[v], 4, threads);
                uint64_t least = threads > 2 ? threads : 2;
                assert_true(rows >= 1 && rows <= tokens);
                assert_true(rows == tokens || rows >= least);
                uint64_t last = tokens % rows;
                assert_true(rows == tokens || last == 0 || last >= least);
                /* Beyond the size only as far as the shortest chunk asks (a few rows more
                 * where a count leaves one row over for many sizes in turn). */
                uint64_t room = (24 << 20) / (vocabularies[v] * 4);
                assert_true(rows <= (room > least ? room : least) + least + 10);
            }
        }
    }
}

static void extremes_do_not_overflow(void **state)
{
    (void)state;
    assert_int_equal(ms_loss_chunk_rows(0, 0, 0, 0), 1);
    assert_int_equal(ms_loss_chunk_rows(10, UINT64_MAX, 8, 0), 2);
    assert_int_equal(ms_loss_chunk_rows(10, 0, 4, 1), 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_are_small_and_never_short),
        cmocka_unit_test(extremes_do_not_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
