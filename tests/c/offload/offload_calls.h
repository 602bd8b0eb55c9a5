/*
 * Calls of offload.h that must succeed, for tests of later calls.
 */
#ifndef MS_TEST_OFFLOAD_CALLS_H
#define MS_TEST_OFFLOAD_CALLS_H

#include "offload_fixture.h"

static inline ms_ticket store(ms_offload *engine, const void *source, uint64_t bytes, uint64_t capacity)
{
    ms_error err = {0};
    ms_ticket ticket = 0;
    assert_ms_ok(ms_offload_store(engine, source, bytes, capacity, &ticket, &err), err);
    assert_true(ticket != 0);
    return ticket;
}

static inline void wait_ok(ms_offload *engine, ms_ticket ticket)
{
    ms_error err = {0};
    assert_ms_ok(ms_offload_wait(engine, ticket, &err), err);
}

static inline void fetch_ok(ms_offload *engine, ms_ticket ticket, void *destination, uint64_t capacity)
{
    ms_error err = {0};
    assert_ms_ok(ms_offload_fetch(engine, ticket, destination, capacity, &err), err);
    wait_ok(engine, ticket);
}

static inline ms_offload_stats stats_of(ms_offload *engine)
{
    ms_offload_stats stats;
    ms_offload_get_stats(engine, &stats);
    return stats;
}

#endif
