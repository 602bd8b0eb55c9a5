/*
 * One check of `memscale doctor` and its report; shared by cmd_doctor.c and doctor_software.c.
 * Tests: tests/cli/doctor.golden.
 */
#ifndef MS_CLI_DOCTOR_H
#define MS_CLI_DOCTOR_H

#include "memscale/hardware.h"

typedef enum check_status { CHECK_OK, CHECK_WARN, CHECK_FAIL } check_status;

typedef struct check_result {
    check_status status;
    char text[512];
    char advice[256]; /* "" if there is nothing to do */
} check_result;

/* The input of the checks. */
typedef struct patient {
    const char *disk_dir;       /* NULL: memscale chooses */
    const ms_hardware *machine; /* NULL if probing failed */
    ms_error probe_error;
} patient;

/* Adds to the text of a result. */
void doctor_say(check_result *result, const char *fmt, ...) MS_PRINTF(2, 3);
void doctor_advise(check_result *result, check_status status, const char *advice);

/* The checks of doctor_software.c. */
void doctor_check_versions(const patient *p, check_result *result);
void doctor_check_packages(const patient *p, check_result *result);
void doctor_check_cgroup(const patient *p, check_result *result);
void doctor_check_conflicts(const patient *p, check_result *result);

#endif
