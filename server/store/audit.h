/*
 * audit.h - who did what to which object; append only. Each row's hash covers the row and the previous row's
 * hash, so a changed or missing row breaks the chain. Write handlers call it in their transaction: a change
 * and its row are committed together.
 */
#ifndef MSS_STORE_AUDIT_H
#define MSS_STORE_AUDIT_H

#include "store/sql.h"

/* `verb` is a fixed text ("token made"); `account`, `team` and `object` are identifiers or "". */
MS_NODISCARD int mss_audit_add(mss_sql *sql, const char *account, const char *team, const char *verb,
                               const char *object, ms_error *err);

/* MS_EFORMAT, with the number of the first row whose hash is wrong. */
MS_NODISCARD int mss_audit_check(mss_sql *sql, int64_t *rows, ms_error *err);

#endif
