/*
 * Holds the lanes of an engine still, the way a fork does, so that a test can look
 * at transfers that are certainly in flight.
 */
#ifndef MS_TEST_OFFLOAD_HOLD_H
#define MS_TEST_OFFLOAD_HOLD_H

#include "offload/engine.h"

/* Pieces in lanes end first; what is queued stays queued. */
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

#endif
