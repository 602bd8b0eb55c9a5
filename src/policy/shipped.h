/*
 * The artifact that is built into the library (shipped.json). Its card is docs/results/policy.md; scripts/policy.sh makes
 * it again. Tests: tests/c/policy/test_shipped.c.
 */
#ifndef MS_POLICY_SHIPPED_H
#define MS_POLICY_SHIPPED_H

extern const char ms__policy_shipped[];

#endif
