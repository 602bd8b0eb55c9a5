/*
 * The built-in artifact. Called by Python's find_policy() and `memscale policy`.
 */
#include "policy/shipped.h"

#include "memscale/policy.h"

const char *ms_policy_shipped(void)
{
    return ms__policy_shipped;
}
