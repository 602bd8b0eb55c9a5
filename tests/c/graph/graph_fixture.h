/*
 * What the tests of graph documents share: the error that calls fill, and its reset between tests.
 */
#ifndef TEST_GRAPH_FIXTURE_H
#define TEST_GRAPH_FIXTURE_H

#include <errno.h>

#include "memscale/graph.h"
#include "test_common.h"

static ms_error err;

static int setup(void **state)
{
    (void)state;
    memset(&err, 0, sizeof err);
    return 0;
}

static int disarm(void **state)
{
    (void)state;
    ms_fault_disarm_all();
    return 0;
}

#endif
