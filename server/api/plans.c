/* Plan as a service: the documents in, the library's plan out, the same bytes as `memscale plan --json`. */
#include "api/api.h"
#include "api/plan_worker.h"

int mss_api_plan_prepare(mss_request *r)
{
    ms_error err;
    char *output = NULL;
    int ending = MSS_PLAN_FAILED;
    if (mss_plan_run(r->body, r->body_bytes, &ending, &output, &err) != MS_OK) {
        return mss_answer_failure(r, &err);
    }
    int status;
    switch (ending) {
    case MSS_PLAN_MADE:
        return mss_answer_text(r, 200, "application/json", output);
    case MSS_PLAN_REFUSED:
    case MSS_PLAN_INFEASIBLE:
        status = mss_answer_problem(r, 422, "%s", output);
        break;
    default:
        status = mss_answer_problem(
            r, 422, "This plan takes more than %d seconds or 4 GiB here; make it with the program.", MSS_PLAN_SECONDS);
    }
    ms_free(output);
    return status;
}

/* The answer is there already. */
int mss_api_plan(mss_request *r)
{
    (void)r;
    return 200;
}
