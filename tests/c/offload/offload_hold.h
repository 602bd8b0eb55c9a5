/*
 * Pauses an engine's lanes, as a fork does, so that transfers stay in flight while a test examines
 * them; or waits until a transfer is in a lane.
 */
#ifndef MS_TEST_OFFLOAD_HOLD_H
#define MS_TEST_OFFLOAD_HOLD_H

#include <time.h>

#include "offload/engine.h"

/* Waits for the pieces in lanes; queued ones stay queued. */
static inline void hold_lanes(ms_offload *engine)
{
    ms__mutex_lock(&engine->lock);
    engine->is_paused = true;
    while (engine->running_count > 0) {
        ms__cond_wait(&engine->changed, &engine->lock);
    }
    ms__mutex_unlock(&engine->lock);
}

static inline void release_lanes(ms_offload *engine)
{
    ms__mutex_lock(&engine->lock);
    engine->is_paused = false;
    ms__cond_broadcast(&engine->work_ready);
    ms__mutex_unlock(&engine->lock);
}

/* Waits until a lane has taken a piece, which can take longer than a short deadline on a busy machine. */
static inline void wait_for_lane(ms_offload *engine)
{
    for (bool is_taken = false; !is_taken;) {
        ms__mutex_lock(&engine->lock);
        is_taken = engine->running_count > 0;
        ms__mutex_unlock(&engine->lock);
        nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
    }
}

#endif
