/*
 * postgres_link.h - connecting to PostgreSQL, and what its errors mean. Used by postgres.c alone.
 *
 * No error text has more than the first line of PostgreSQL's, which names host, port and user, and never a password.
 */
#ifndef MSS_STORE_POSTGRES_LINK_H
#define MSS_STORE_POSTGRES_LINK_H

#include <libpq-fe.h>

#include "store/sql.h"

/* Connects and sets the session up. MS_EIO if the database can't be reached; MS_ECONFIG if it doesn't hold UTF-8. */
MS_NODISCARD int mss_link_open(const char *where, mss_sql_mode mode, PGconn **link, ms_error *err);

/* The ports of the connection's hosts: 0 of them if it is a Unix socket's. */
size_t mss_link_ports(PGconn *link, uint16_t *ports, size_t most);

/* The error that a result (NULL: none came) tells, as sql.h has them. */
int mss_link_fail(PGconn *link, const PGresult *result, const char *doing, ms_error *err);

#endif
