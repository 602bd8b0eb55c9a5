/*
 * Graphs and machines whose plans and candidates are in tables: plan/plans.golden, search/candidates.golden.
 */
#ifndef MS_TEST_PLAN_SUBJECTS_H
#define MS_TEST_PLAN_SUBJECTS_H

#include "plan_fixture.h"

enum { PLAN_SUBJECTS = 11, PLAN_MACHINES = 3 };

typedef struct plan_subject {
    const char *name;
    ms_graph *(*make)(void);
    ms_mode mode;
} plan_subject;

typedef struct plan_machine {
    const char *name;
    void (*set)(ms_hardware *hardware);
} plan_machine;

extern const plan_subject plan_subjects[PLAN_SUBJECTS];
extern const plan_machine plan_machines[PLAN_MACHINES];

/* The documents of a plan. Closed by fixture_close(). */
fixture_planning plan_subject_open(const plan_subject *subject, const plan_machine *machine);

#endif
