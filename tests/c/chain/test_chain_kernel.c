/*
 * The inner loop of the chain solver's table: both of its compilations give, for drawn rows and
 * drawn ways to make an entry, what one entry after the other gives by the definition.
 */
#include "chain/chain_kernel.h"

#include "test_common.h"

void ms__chain_fill_plain(const ms__chain_fill *fill);
#ifdef MS_CHAIN_X86
void ms__chain_fill_avx2(const ms__chain_fill *fill);
#endif

enum { ROWS = 20, ENTRIES = 512, BLOCKS = ENTRIES / MS__CHAIN_BLOCK, RESTS = 3, SUMS = 9, CASES = 5000 };

typedef struct drawn {
    uint64_t seed;
    uint32_t rows[ROWS][ENTRIES], ends[ROWS][BLOCKS];
    ms__chain_rest rests[RESTS];
    ms__chain_sum sums[SUMS];
    ms__chain_fill fill;
} drawn;

static uint32_t draw(drawn *self, uint32_t below)
{
    self->seed = self->seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((self->seed >> 33) % below);
}

/* Times fall with memory, in steps. */
static void draw_row(drawn *self, uint32_t *row, uint32_t *ends)
{
    uint32_t time = 1000000;
    for (uint32_t i = 0; i < ENTRIES; i++) {
        if (draw(self, 5) == 0 && time > 2000) {
            time -= draw(self, 2000);
        }
        row[i] = time;
    }
    for (uint32_t k = 0; k < BLOCKS; k++) {
        ends[k] = row[k * MS__CHAIN_BLOCK + MS__CHAIN_BLOCK - 1];
    }
}

static void draw_case(drawn *self, uint64_t seed)
{
    self->seed = seed;
    for (uint32_t r = 0; r < ROWS; r++) {
        draw_row(self, self->rows[r], self->ends[r]);
    }
    uint32_t rest_count = draw(self, RESTS + 1), sum_count = draw(self, SUMS + 1), add = 0;
    for (uint32_t i = 0; i < rest_count; i++) {
        uint32_t taken = draw(self, 200);
        self->rests[i] = (ms__chain_rest){self->rows[i] - taken, taken + draw(self, 300), draw(self, 5000)};
    }
    for (uint32_t i = 0; i < sum_count; i++) {
        uint32_t taken = draw(self, 200), left = RESTS + i, right = (7 + i) % ROWS;
        add += draw(self, 300000);
        self->sums[i] = (ms__chain_sum){self->rows[left] - taken,
                                        self->rows[right],
                                        self->ends[left],
                                        self->ends[right],
                                        taken + draw(self, 300),
                                        add,
                                        taken};
    }
    self->fill = (ms__chain_fill){
        NULL, MS__CHAIN_BLOCK * draw(self, 3), ENTRIES, self->rests, self->sums, rest_count, sum_count};
}

static uint32_t by_definition(const ms__chain_fill *fill, uint32_t entry)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t k = 0; k < fill->rest_count; k++) {
        const ms__chain_rest *of = &fill->rests[k];
        if (entry >= of->start && of->rest[entry] + of->add < best) {
            best = of->rest[entry] + of->add;
        }
    }
    for (uint32_t k = 0; k < fill->sum_count; k++) {
        const ms__chain_sum *of = &fill->sums[k];
        if (entry >= of->start && of->left[entry] + of->right[entry] + of->add < best) {
            best = of->left[entry] + of->right[entry] + of->add;
        }
    }
    return best;
}

static void compare(void (*filler)(const ms__chain_fill *fill))
{
    static drawn self;
    static uint32_t row[ENTRIES];
    for (uint64_t seed = 1; seed <= CASES; seed++) {
        draw_case(&self, seed);
        memset(row, 7, sizeof row);
        self.fill.row = row;
        filler(&self.fill);
        for (uint32_t entry = 0; entry < ENTRIES; entry++) {
            uint32_t expected = entry < self.fill.begin ? 0x07070707u : by_definition(&self.fill, entry);
            if (row[entry] != expected) {
                fail_msg("case %llu, entry %u: %u, not %u", (unsigned long long)seed, entry, row[entry], expected);
            }
        }
    }
}

static void the_plain_loop_is_the_definition(void **state)
{
    (void)state;
    compare(ms__chain_fill_plain);
}

static void the_loop_with_avx2_is_the_definition(void **state)
{
    (void)state;
#ifdef MS_CHAIN_X86
    if (__builtin_cpu_supports("avx2")) {
        compare(ms__chain_fill_avx2);
        return;
    }
#endif
    skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_plain_loop_is_the_definition),
        cmocka_unit_test(the_loop_with_avx2_is_the_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
