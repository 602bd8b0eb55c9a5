/*
 * migrations.h - the schema, as the migrations that lead to it. A released migration never changes. A change of
 * the schema is a new migration at the end, with a test that starts from the previous version. BYTES is the type of
 * bytes, the one word in which SQLite and PostgreSQL differ here.
 */
#ifndef MSS_STORE_MIGRATIONS_H
#define MSS_STORE_MIGRATIONS_H

/* The first: accounts, sessions, teams, tokens, runs, audit. Times are milliseconds since 1970, UTC. */
#define MSS_MIGRATION_1(BYTES) \
    "CREATE TABLE account (" \
    " id TEXT PRIMARY KEY, email TEXT NOT NULL UNIQUE, name TEXT NOT NULL," \
    " password_hash TEXT NOT NULL, is_operator INTEGER NOT NULL, created_at BIGINT NOT NULL);" \
    "CREATE TABLE session (" \
    " hash " BYTES " PRIMARY KEY, account TEXT NOT NULL REFERENCES account ON DELETE CASCADE," \
    " created_at BIGINT NOT NULL, expires_at BIGINT NOT NULL);" \
    "CREATE INDEX session_account ON session (account);" \
    "CREATE TABLE team (id TEXT PRIMARY KEY, name TEXT NOT NULL, created_at BIGINT NOT NULL);" \
    "CREATE TABLE member (" \
    " team TEXT NOT NULL REFERENCES team ON DELETE CASCADE," \
    " account TEXT NOT NULL REFERENCES account ON DELETE CASCADE," \
    " role INTEGER NOT NULL CHECK (role BETWEEN 1 AND 4), joined_at BIGINT NOT NULL," \
    " PRIMARY KEY (team, account));" \
    "CREATE INDEX member_account ON member (account);" \
    "CREATE TABLE invitation (" \
    " id TEXT PRIMARY KEY, hash " BYTES " NOT NULL UNIQUE, team TEXT REFERENCES team ON DELETE CASCADE," \
    " role INTEGER NOT NULL, created_by TEXT REFERENCES account ON DELETE CASCADE," \
    " created_at BIGINT NOT NULL, expires_at BIGINT NOT NULL);" \
    "CREATE INDEX invitation_team ON invitation (team);" \
    "CREATE TABLE token (" \
    " id TEXT PRIMARY KEY, hash " BYTES " NOT NULL UNIQUE, team TEXT NOT NULL REFERENCES team ON DELETE CASCADE," \
    " account TEXT NOT NULL REFERENCES account ON DELETE CASCADE, name TEXT NOT NULL," \
    " scopes INTEGER NOT NULL, created_at BIGINT NOT NULL, last_used_at BIGINT);" \
    "CREATE INDEX token_team ON token (team);" \
    "CREATE INDEX token_account ON token (account);" \
    "CREATE TABLE project (" \
    " id TEXT PRIMARY KEY, team TEXT NOT NULL REFERENCES team ON DELETE CASCADE, name TEXT NOT NULL," \
    " created_at BIGINT NOT NULL, UNIQUE (team, name));" \
    "CREATE TABLE run (" \
    " id TEXT PRIMARY KEY, team TEXT NOT NULL REFERENCES team ON DELETE CASCADE," \
    " project TEXT NOT NULL REFERENCES project ON DELETE CASCADE," \
    " account TEXT REFERENCES account ON DELETE SET NULL," \
    " idempotency_key TEXT NOT NULL, request_hash " BYTES " NOT NULL, name TEXT, model TEXT NOT NULL," \
    " machine TEXT, versions_json TEXT, config_json TEXT, plan_json TEXT, counters_json TEXT, graph_digest TEXT," \
    " budget_bytes BIGINT, predicted_peak_bytes BIGINT, predicted_step_ns BIGINT, peak_bytes BIGINT," \
    " outcome TEXT NOT NULL DEFAULT 'running', started_at BIGINT NOT NULL, finished_at BIGINT," \
    " step_count BIGINT NOT NULL DEFAULT 0, sum_step_ns BIGINT NOT NULL DEFAULT 0," \
    " last_step BIGINT NOT NULL DEFAULT 0, last_sequence BIGINT NOT NULL DEFAULT 0," \
    " stored_bytes BIGINT NOT NULL DEFAULT 0," \
    " UNIQUE (team, idempotency_key));" \
    "CREATE INDEX run_started ON run (team, started_at DESC, id DESC);" \
    "CREATE INDEX run_project ON run (project);" \
    "CREATE INDEX run_account ON run (account);" \
    "CREATE TABLE batch (" \
    " run TEXT NOT NULL REFERENCES run ON DELETE CASCADE, sequence BIGINT NOT NULL," \
    " first_step BIGINT NOT NULL, last_step BIGINT NOT NULL, steps INTEGER NOT NULL, data " BYTES " NOT NULL," \
    " PRIMARY KEY (run, sequence));" \
    "CREATE TABLE telemetry (received_on TEXT NOT NULL, event_json TEXT NOT NULL);" \
    "CREATE TABLE audit (" \
    " number BIGINT PRIMARY KEY, happened_at BIGINT NOT NULL, account TEXT NOT NULL, team TEXT NOT NULL," \
    " verb TEXT NOT NULL, object TEXT NOT NULL, hash " BYTES " NOT NULL);" \
    "CREATE INDEX audit_team ON audit (team, number);"

/* Frontiers as jobs. */
#define MSS_MIGRATION_2(BYTES) \
    "CREATE TABLE job (" \
    " id TEXT PRIMARY KEY, team TEXT NOT NULL REFERENCES team ON DELETE CASCADE," \
    " account TEXT REFERENCES account ON DELETE SET NULL, state TEXT NOT NULL DEFAULT 'queued'," \
    " points BIGINT NOT NULL, points_done BIGINT NOT NULL DEFAULT 0, request_json TEXT NOT NULL," \
    " result_json TEXT, problem TEXT, created_at BIGINT NOT NULL, started_at BIGINT, finished_at BIGINT);" \
    "CREATE INDEX job_state ON job (state, created_at);" \
    "CREATE INDEX job_team ON job (team);" \
    "CREATE INDEX job_account ON job (account);"

/* The second factor. Without `confirmed_at` it is a set-up and doesn't count; `last_step` is that of the last code. */
#define MSS_MIGRATION_3(BYTES) \
    "CREATE TABLE second_factor (" \
    " account TEXT PRIMARY KEY REFERENCES account ON DELETE CASCADE, secret " BYTES " NOT NULL," \
    " last_step BIGINT NOT NULL DEFAULT 0, started_at BIGINT NOT NULL, confirmed_at BIGINT);" \
    "CREATE TABLE recovery_code (" \
    " account TEXT NOT NULL REFERENCES second_factor ON DELETE CASCADE, hash " BYTES " NOT NULL," \
    " PRIMARY KEY (account, hash));" \
    "CREATE TABLE pending_sign_in (" \
    " hash " BYTES " PRIMARY KEY, account TEXT NOT NULL REFERENCES account ON DELETE CASCADE," \
    " tries_left INTEGER NOT NULL, created_at BIGINT NOT NULL, expires_at BIGINT NOT NULL);" \
    "CREATE INDEX pending_sign_in_account ON pending_sign_in (account);"

/* Documents that were added to a run, as they came. */
#define MSS_MIGRATION_4(BYTES) \
    "CREATE TABLE artifact (" \
    " run TEXT NOT NULL REFERENCES run ON DELETE CASCADE, kind TEXT NOT NULL, hash " BYTES " NOT NULL," \
    " bytes BIGINT NOT NULL, stored_at BIGINT NOT NULL, data " BYTES " NOT NULL, PRIMARY KEY (run, kind));"

/* The run whose artifacts a frontier is made of. */
#define MSS_MIGRATION_5(BYTES) \
    "ALTER TABLE job ADD COLUMN run TEXT REFERENCES run ON DELETE CASCADE;" \
    "CREATE INDEX job_run ON job (run);"

/* Rows of the audit are only added, one behind the other, whoever writes: not even the end of a team takes them away. The
 * words differ; sqlite.c and postgres.c say which are theirs, as MSS_AUDIT_GUARD. */
#define MSS_MIGRATION_6(BYTES) MSS_AUDIT_GUARD
#define MSS_AUDIT_GUARD_SQLITE \
    "CREATE TRIGGER audit_update BEFORE UPDATE ON audit BEGIN" \
    " SELECT RAISE(ABORT, 'audit: rows are only added'); END;" \
    "CREATE TRIGGER audit_delete BEFORE DELETE ON audit BEGIN" \
    " SELECT RAISE(ABORT, 'audit: rows are only added'); END;" \
    "CREATE TRIGGER audit_insert BEFORE INSERT ON audit" \
    " WHEN NEW.number <> (SELECT coalesce(max(number), 0) + 1 FROM audit) BEGIN" \
    " SELECT RAISE(ABORT, 'audit: rows are only added'); END;"
#define MSS_AUDIT_GUARD_POSTGRES \
    "CREATE FUNCTION audit_refuse() RETURNS trigger LANGUAGE plpgsql AS" \
    " 'BEGIN RAISE EXCEPTION ''audit: rows are only added''; END';" \
    "CREATE TRIGGER audit_change BEFORE UPDATE OR DELETE OR TRUNCATE ON audit" \
    " FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse();"

/* What servers on one database tell each other: when a bucket of requests is full again (http/shared.h). Nothing of it is
 * worth keeping, so it is in no version, and unlogged: PostgreSQL empties it after a crash. */
#define MSS_SHARED_TABLES \
    "CREATE UNLOGGED TABLE IF NOT EXISTS bucket (key BIGINT PRIMARY KEY, full_at_ns BIGINT NOT NULL)"

#define MSS_MIGRATION_TABLE(X) \
    X(MSS_MIGRATION_1) \
    X(MSS_MIGRATION_2) \
    X(MSS_MIGRATION_3) \
    X(MSS_MIGRATION_4) \
    X(MSS_MIGRATION_5) \
    X(MSS_MIGRATION_6)

#endif
