/*
 * Shared by the rules and by step options that have a rule of their own. Tests: tests/c/rules/test_rules.c.
 */
#ifndef MS_RULES_RULES_INTERNAL_H
#define MS_RULES_RULES_INTERNAL_H

#include "memscale/rules.h"

/* Whether there is a directory for offloading that can be written and is not in memory. */
static inline bool ms__disk_is_usable(const ms_disk *disk)
{
    return disk->dir[0] != '\0' && disk->refusal[0] == '\0' && !disk->is_memory;
}

#endif
