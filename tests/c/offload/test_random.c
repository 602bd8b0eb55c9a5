/* Eight threads use one engine at random; every delivered byte is compared with the stored one.
 * Then the same under faults. */
#include "offload_fixture.h"
#include "offload_hold.h"

#include <errno.h>
#include <time.h>

enum { CALLERS = 8, HELD = 6, FETCHES_LEAST = 8 };
#define AREA_BYTES (400 * KIB)

typedef struct holding {
    ms_ticket ticket;
    unsigned char *source; /* must live until the store has ended */
    uint64_t bytes;
    uint64_t seed;
} holding;

typedef struct caller {
    ms_offload *engine;
    uint64_t random;
    uint64_t until_ns;
    bool faults_strike;
    holding held[HELD];
    unsigned char *destination;
    unsigned char *sources[HELD];
    uint64_t fetches;
    const char *wrong; /* the broken promise, or NULL */
} caller;

static uint64_t next_random(caller *self)
{
    self->random ^= self->random << 13;
    self->random ^= self->random >> 7;
    self->random ^= self->random << 17;
    return self->random;
}

/* In a page: its start, half of the time. */
static uint64_t random_place(caller *self)
{
    return next_random(self) % 2 == 0 ? 0 : next_random(self) % 4096;
}

/* Calls that reported a fault. Under load the time may end before any. */
static _Atomic uint64_t struck;

/* A transfer may fail only under faults. */
static void expect(caller *self, int rc, const char *what)
{
    if (rc == MS_OK) {
        return;
    }
    bool is_struck = self->faults_strike && (rc == MS_EIO || rc == MS_ECHECKSUM);
    struck += is_struck;
    if (!is_struck && rc != MS_ENOSPC) { /* the cap is small on purpose */
        self->wrong = what;
    }
}

static void begin(caller *self, size_t i)
{
    holding *held = &self->held[i];
    held->bytes = 1 + next_random(self) % (AREA_BYTES - 8192);
    held->seed = next_random(self);
    held->source = self->sources[i] + random_place(self);
    pattern(held->source, held->bytes, held->seed);
    uint64_t spare = next_random(self) % 2 == 0 ? 4096 : 0;
    int rc = ms_offload_store(self->engine, held->source, held->bytes, held->bytes + spare, &held->ticket, NULL);
    expect(self, rc, "store");
    if (rc != MS_OK) {
        held->ticket = 0;
    }
}

static void bring_back(caller *self, const holding *held)
{
    unsigned char *to = self->destination + random_place(self);
    uint64_t spare = next_random(self) % 2 == 0 ? 4096 : 0;
    fill(to, 0, held->bytes);
    int rc = ms_offload_fetch(self->engine, held->ticket, to, held->bytes + spare, NULL);
    if (rc == MS_OK) {
        rc = ms_offload_wait(self->engine, held->ticket, NULL);
    }
    expect(self, rc, "fetch");
    self->fetches++;
    if (rc == MS_OK && !has_pattern(to, held->bytes, held->seed)) {
        self->wrong = "bytes differ";
    }
}

static void end(caller *self, holding *held)
{
    ms_offload_drop(self->engine, held->ticket);
    if (ms_offload_state(self->engine, held->ticket) != MS_TICKET_FAILED ||
        ms_offload_wait(self->engine, held->ticket, NULL) != MS_EINVAL) {
        self->wrong = "a dropped ticket still means something";
    }
    fill(held->source, 0xEE, held->bytes);
    held->ticket = 0;
}

static bool goes_on(const caller *self)
{
    uint64_t now_ns = ms_now_ns();
    bool is_due = now_ns < self->until_ns || self->fetches < FETCHES_LEAST;
    bool is_unstruck = self->faults_strike && struck == 0 && now_ns < self->until_ns + PATIENCE_NS;
    return self->wrong == NULL && (is_due || is_unstruck);
}

static void caller_body(void *argument)
{
    caller *self = argument;
    while (goes_on(self)) {
        size_t i = next_random(self) % HELD;
        holding *held = &self->held[i];
        ms_ticket reaped[3];
        switch (held->ticket == 0 ? 0 : next_random(self) % 8) {
        case 0:
        case 1:
            if (held->ticket == 0) {
                begin(self, i);
            } else {
                end(self, held);
            }
            break;
        case 2:
            expect(self, ms_offload_wait(self->engine, held->ticket, NULL), "wait");
            break;
        case 3:
            (void)ms_offload_reap(self->engine, reaped, 3);
            break;
        case 4:
            expect(self, ms_offload_quiesce(self->engine, NULL), "quiesce");
            break;
        default:
            bring_back(self, held);
        }
    }
    for (size_t i = 0; i < HELD; i++) {
        if (self->held[i].ticket != 0) {
            end(self, &self->held[i]);
        }
    }
}

static void start(caller *self, ms_offload *engine, uint64_t seed, bool faults_strike)
{
    memset(self, 0, sizeof *self);
    self->engine = engine;
    self->random = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
    const char *seconds = getenv("MEMSCALE_SOAK_SECONDS"); /* per backend, for scripts/soak.sh */
    double share = seconds != NULL ? atof(seconds) / 2 : 1.5;
    self->until_ns = ms_now_ns() + (uint64_t)(share * 1e9);
    self->faults_strike = faults_strike;
    self->destination = pages_new(AREA_BYTES);
    for (int i = 0; i < HELD; i++) {
        self->sources[i] = pages_new(AREA_BYTES);
    }
}

static void finish(caller *self)
{
    pages_free(self->destination, AREA_BYTES);
    for (int i = 0; i < HELD; i++) {
        pages_free(self->sources[i], AREA_BYTES);
    }
}

/* One fault after another, of every kind for transfers, until the time ends and one was reported. */
static void strike(uint64_t until_ns)
{
    const ms_fault kinds[] = {MS_FAULT_WRITE, MS_FAULT_SHORT, MS_FAULT_READ, MS_FAULT_FLIP};
    const int numbers[] = {ENOSPC, 0, EIO, 0};
    uint64_t now_ns = ms_now_ns();
    for (uint64_t i = 0; now_ns < until_ns || (struck == 0 && now_ns < until_ns + PATIENCE_NS); i++) {
        ms_fault_arm(kinds[i % 4], 1 + i % 5, numbers[i % 4]);
        struct timespec pause = {.tv_nsec = 2000000};
        nanosleep(&pause, NULL);
        now_ns = ms_now_ns();
    }
    ms_fault_disarm_all();
}

static void run_callers(bool faults_strike)
{
    static caller callers[CALLERS];
    ms__thread threads[CALLERS] = {{0}};
    ms_error err = {0};
    ms_offload_stats stats;
    ms_offload_options options = small_options();
    options.cap_bytes = 8 * MIB; /* reached sometimes */
    ms_offload *engine = open_engine(&options);
    struck = 0;
    for (int i = 0; i < CALLERS; i++) {
        start(&callers[i], engine, (uint64_t)i + 1, faults_strike);
    }
    for (int i = 0; i < CALLERS; i++) {
        assert_ms_ok(ms__thread_start(&threads[i], "caller", caller_body, &callers[i], &err), err);
    }
    if (faults_strike) {
        strike(callers[0].until_ns - 100000000);
    }
    uint64_t fetches = 0;
    for (int i = 0; i < CALLERS; i++) {
        ms__thread_join(&threads[i]);
        finish(&callers[i]);
        assert_null(callers[i].wrong);
        fetches += callers[i].fetches;
    }
    assert_true(fetches > 50);
    assert_int_equal(struck > 0, faults_strike);
    ms_offload_get_stats(engine, &stats);
    assert_int_equal(stats.live_tickets, 0);
    assert_int_equal(stats.tier_bytes, 0);
    assert_true(stats.peak_tier_bytes <= options.cap_bytes);
    assert_int_equal(stats.storing_bytes + stats.fetching_bytes, 0);
    assert_int_equal(engine->slots.free_count, engine->slots.count - engine->slots.private_count);
    assert_engine_works(engine);
    ms_offload_close(engine);
}

static void eight_threads_get_their_own_bytes_back(void **state)
{
    (void)state;
    run_callers(false);
}

static void under_faults_bytes_are_right_or_refused(void **state)
{
    (void)state;
    run_callers(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        OFFLOAD_TEST(eight_threads_get_their_own_bytes_back),
        OFFLOAD_TEST(under_faults_bytes_are_right_or_refused),
    };
    return run_on_every_backend("random use", tests, sizeof tests / sizeof tests[0]);
}
