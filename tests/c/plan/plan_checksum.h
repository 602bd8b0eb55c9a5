/*
 * A plan as one number, for tables of plans.
 */
#ifndef MS_TEST_PLAN_CHECKSUM_H
#define MS_TEST_PLAN_CHECKSUM_H

#include "plan_fixture.h"

/* Of its document, its texts, its timeline, and the plan that follows after a small correction. */
uint64_t plan_checksum(const fixture_planning *f, uint64_t budget_bytes, const ms_plan *plan);

/* Its document, read and written again, is the same. */
void plan_assert_read_back(const ms_plan *plan);

#endif
