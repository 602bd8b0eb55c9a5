/*
 * filter.h - which system calls this process may still make. One table says it for each stage of its life; a stage can
 * only be left for a later one, and the kernel enforces it (seccomp). Used by main.c and the plan worker.
 *
 * A call that only an attack makes (ptrace, mount, bpf, io_uring and their kin) ends the process. Any other call that
 * isn't in the table fails as if the kernel didn't know it (ENOSYS), so that libraries take their older ways. No memory
 * is ever both writable and executable.
 *
 * Tests: tests/server/c/test_filter.c; the program itself: tests/server/test_process.py.
 */
#ifndef MSS_PROCESS_FILTER_H
#define MSS_PROCESS_FILTER_H

#include "memscale/base.h"

typedef enum mss_stage {
    MSS_STAGE_START, /* everything that the server needs from its start to its end */
    MSS_STAGE_SERVE, /* it listens nowhere else any more */
    MSS_STAGE_WORK,  /* of a plan worker: no files are opened, no connections made, no programs run */
} mss_stage;

/* Puts all threads of this process, and what they start later, into the stage. `*is_filtered` is false if this kernel
 * has no filters, or on a machine of 32 bits and on s390x; then nothing has happened. Call it after mss_process_close(). MS_ENOMEM, MS_ESYSTEM. */
MS_NODISCARD int mss_filter_enter(mss_stage stage, bool *is_filtered, ms_error *err);

#endif
