/*
 * statements.h - all statements that the server sends to its database. Values are always parameters; no
 * statement is composed at run time. SQLite and PostgreSQL run the same texts; the second table has those that
 * PostgreSQL needs in other words, the third those that only a shared database needs.
 */
#ifndef MSS_STORE_STATEMENTS_H
#define MSS_STORE_STATEMENTS_H

#define RUN_COLUMNS \
    "r.id, p.name AS project, r.name, r.model, r.machine, r.versions_json, r.outcome, r.started_at, r.finished_at, " \
    "r.step_count, r.last_step, r.last_sequence, r.peak_bytes, r.budget_bytes, r.predicted_peak_bytes, " \
    "r.predicted_step_ns, a.name AS account, " \
    "CASE WHEN r.step_count > 0 THEN r.sum_step_ns / r.step_count END AS mean_step_ns "
#define RUN_FROM "FROM run r JOIN project p ON p.id = r.project LEFT JOIN account a ON a.id = r.account "

#define JOB_COLUMNS "id, run, state, points, points_done, problem, created_at, started_at, finished_at "

#define MSS_STATEMENT_TABLE(X) \
    /* the schema */ \
    X(SCHEMA_VERSION, "SELECT version FROM schema_version") \
    X(SCHEMA_SET_VERSION, "UPDATE schema_version SET version = $1") \
    /* accounts */ \
    X(ACCOUNT_COUNT, "SELECT count(*) FROM account") \
    X(ACCOUNT_ADD, "INSERT INTO account (id, email, name, password_hash, is_operator, created_at) " \
                   "VALUES ($1, $2, $3, $4, $5, $6)") \
    X(ACCOUNT_BY_EMAIL, "SELECT id, password_hash FROM account WHERE email = $1") \
    X(ACCOUNT_PASSWORD, "SELECT password_hash FROM account WHERE id = $1") \
    X(ACCOUNT_SET_PASSWORD, "UPDATE account SET password_hash = $1 WHERE id = $2") \
    X(ACCOUNT_SHOW, "SELECT id, email, name, is_operator, created_at FROM account WHERE id = $1") \
    X(ACCOUNT_DELETE, "DELETE FROM account WHERE id = $1") \
    X(ACCOUNT_SOLE_OWNER, "SELECT count(*) FROM member m WHERE m.account = $1 AND m.role = 4 AND NOT EXISTS " \
                          "(SELECT 1 FROM member o WHERE o.team = m.team AND o.account <> m.account AND o.role = 4) " \
                          "AND EXISTS (SELECT 1 FROM member o WHERE o.team = m.team AND o.account <> m.account)") \
    X(ACCOUNT_LONELY_TEAMS, "DELETE FROM team WHERE id IN (SELECT m.team FROM member m WHERE m.account = $1 AND " \
                            "NOT EXISTS (SELECT 1 FROM member o WHERE o.team = m.team AND o.account <> m.account))") \
    X(ACCOUNT_RUNS, \
      "SELECT r.team, " RUN_COLUMNS ", r.idempotency_key, r.graph_digest, r.stored_bytes, r.config_json, " \
      "r.counters_json, r.plan_json, r.started_at AS cursor_number, r.id AS cursor_text " RUN_FROM \
      "WHERE r.account = $1 AND (r.started_at, r.id) > ($2, $3) ORDER BY r.started_at, r.id LIMIT $4") \
    /* sessions */ \
    X(SESSION_ADD, "INSERT INTO session (hash, account, created_at, expires_at) VALUES ($1, $2, $3, $4)") \
    X(SESSION_FIND, "SELECT s.account, a.is_operator, a.email FROM session s JOIN account a ON a.id = s.account " \
                    "WHERE s.hash = $1 AND s.expires_at > $2") \
    X(SESSION_DELETE, "DELETE FROM session WHERE hash = $1") \
    X(SESSION_DELETE_ALL, "DELETE FROM session WHERE account = $1") \
    X(SESSION_EXPIRE, "DELETE FROM session WHERE expires_at <= $1") \
    X(SESSION_LIST, "SELECT created_at, expires_at FROM session WHERE account = $1 ORDER BY created_at") \
    /* the second factor, its recovery codes, and sign-ins that wait for a code */ \
    X(SECOND_FACTOR_BEGIN, "INSERT INTO second_factor (account, secret, started_at) VALUES ($1, $2, $3) " \
                           "ON CONFLICT (account) DO UPDATE SET secret = excluded.secret, " \
                           "started_at = excluded.started_at WHERE second_factor.confirmed_at IS NULL") \
    X(SECOND_FACTOR_SETUP, "SELECT secret, last_step FROM second_factor WHERE account = $1 AND started_at > $2 " \
                           "AND confirmed_at IS NULL") \
    X(SECOND_FACTOR_CONFIRM, "UPDATE second_factor SET confirmed_at = $1, last_step = $2 WHERE account = $3 " \
                             "AND confirmed_at IS NULL") \
    X(SECOND_FACTOR_EXPIRE, "DELETE FROM second_factor WHERE confirmed_at IS NULL AND started_at <= $1") \
    X(SECOND_FACTOR_FIND, "SELECT secret, last_step FROM second_factor WHERE account = $1 " \
                          "AND confirmed_at IS NOT NULL") \
    X(SECOND_FACTOR_STEP, "UPDATE second_factor SET last_step = $1 WHERE account = $2 AND last_step < $1") \
    X(SECOND_FACTOR_SHOW, "SELECT f.confirmed_at, (SELECT count(*) FROM recovery_code c " \
                          "WHERE c.account = f.account) AS recovery_codes_left FROM second_factor f " \
                          "WHERE f.account = $1 AND f.confirmed_at IS NOT NULL") \
    X(SECOND_FACTOR_DELETE, "DELETE FROM second_factor WHERE account = $1") \
    X(RECOVERY_CODE_ADD, "INSERT INTO recovery_code (account, hash) VALUES ($1, $2)") \
    X(RECOVERY_CODE_USE, "DELETE FROM recovery_code WHERE account = $1 AND hash = $2") \
    X(RECOVERY_CODE_DELETE_ALL, "DELETE FROM recovery_code WHERE account = $1") \
    X(PENDING_ADD, "INSERT INTO pending_sign_in (hash, account, tries_left, created_at, expires_at) " \
                   "VALUES ($1, $2, $3, $4, $5)") \
    X(PENDING_TRY, "UPDATE pending_sign_in SET tries_left = tries_left - 1 WHERE hash = $1 AND expires_at > $2 " \
                   "AND tries_left > 0") \
    X(PENDING_FIND, "SELECT p.account, a.email, p.tries_left FROM pending_sign_in p " \
                    "JOIN account a ON a.id = p.account WHERE p.hash = $1") \
    X(PENDING_LIST, \
      "SELECT tries_left, created_at, expires_at FROM pending_sign_in WHERE account = $1 ORDER BY created_at") \
    X(PENDING_DELETE, "DELETE FROM pending_sign_in WHERE hash = $1") \
    X(PENDING_DELETE_ALL, "DELETE FROM pending_sign_in WHERE account = $1") \
    X(PENDING_EXPIRE, "DELETE FROM pending_sign_in WHERE expires_at <= $1") \
    /* teams */ \
    X(TEAM_ADD, "INSERT INTO team (id, name, created_at) VALUES ($1, $2, $3)") \
    X(TEAM_SHOW, "SELECT id, name, created_at FROM team WHERE id = $1") \
    X(TEAM_DELETE, "DELETE FROM team WHERE id = $1") \
    X(TEAM_OF_ACCOUNT, "SELECT t.id, t.name, m.role AS role_number, m.joined_at, t.created_at FROM team t " \
                       "JOIN member m ON m.team = t.id WHERE m.account = $1 ORDER BY t.name, t.id") \
    X(TEAM_LIST, "SELECT t.id, t.name, m.role AS role_number, t.created_at, 0 AS cursor_number, " \
                 "t.name || ' ' || t.id AS cursor_text FROM team t JOIN member m ON m.team = t.id " \
                 "WHERE m.account = $1 AND (CAST(0 AS BIGINT), t.name || ' ' || t.id) > ($2, $3) " \
                 "ORDER BY t.name || ' ' || t.id LIMIT $4") \
    X(MEMBER_SET, "INSERT INTO member (team, account, role, joined_at) VALUES ($1, $2, $3, $4) " \
                  "ON CONFLICT (team, account) DO UPDATE SET role = excluded.role") \
    X(MEMBER_ROLE, "SELECT role FROM member WHERE team = $1 AND account = $2") \
    X(MEMBER_LIST, "SELECT a.id, a.name, a.email, m.role AS role_number, m.joined_at, 5 - m.role AS cursor_number, " \
                   "a.name || ' ' || a.id AS cursor_text FROM member m JOIN account a ON a.id = m.account " \
                   "WHERE m.team = $1 AND (CAST(5 - m.role AS BIGINT), a.name || ' ' || a.id) > ($2, $3) " \
                   "ORDER BY 5 - m.role, a.name || ' ' || a.id LIMIT $4") \
    X(MEMBER_DELETE, "DELETE FROM member WHERE team = $1 AND account = $2") \
    X(MEMBER_OWNERS, "SELECT count(*) FROM member WHERE team = $1 AND role = 4") \
    /* invitations; a team of null is the link that makes the first owner */ \
    X(INVITATION_ADD, "INSERT INTO invitation (id, hash, team, role, created_by, created_at, expires_at) " \
                      "VALUES ($1, $2, $3, $4, $5, $6, $7)") \
    X(INVITATION_FIND, "SELECT i.id, i.team, i.role, t.name FROM invitation i LEFT JOIN team t ON t.id = i.team " \
                       "WHERE i.hash = $1 AND i.expires_at > $2") \
    X(INVITATION_USE, "DELETE FROM invitation WHERE hash = $1 AND expires_at > $2") \
    X(INVITATION_LIST, "SELECT id, role AS role_number, created_at, expires_at, created_at AS cursor_number, " \
                       "id AS cursor_text FROM invitation WHERE team = $1 AND (created_at, id) > ($2, $3) " \
                       "ORDER BY created_at, id LIMIT $4") \
    X(INVITATION_OF_ACCOUNT, "SELECT id, team, role AS role_number, created_at, expires_at FROM invitation " \
                             "WHERE created_by = $1 ORDER BY created_at, id") \
    X(INVITATION_DELETE, "DELETE FROM invitation WHERE team = $1 AND id = $2") \
    X(INVITATION_DELETE_FIRST, "DELETE FROM invitation WHERE team IS NULL") \
    X(INVITATION_EXPIRE, "DELETE FROM invitation WHERE expires_at <= $1") \
    /* tokens */ \
    X(TOKEN_ADD, "INSERT INTO token (id, hash, team, account, name, scopes, created_at) " \
                 "VALUES ($1, $2, $3, $4, $5, $6, $7)") \
    X(TOKEN_FIND, "SELECT k.id, k.team, k.account, k.scopes, a.is_operator, a.email, k.last_used_at FROM token k " \
                  "JOIN account a ON a.id = k.account WHERE k.hash = $1") \
    X(TOKEN_LIST, "SELECT k.id, k.name, k.scopes AS scope_bits, k.created_at, k.last_used_at, a.name AS account, " \
                  "k.created_at AS cursor_number, k.id AS cursor_text FROM token k JOIN account a " \
                  "ON a.id = k.account WHERE k.team = $1 AND (k.created_at, k.id) > ($2, $3) " \
                  "ORDER BY k.created_at, k.id LIMIT $4") \
    X(TOKEN_OF_ACCOUNT, "SELECT id, team, name, scopes AS scope_bits, created_at, last_used_at FROM token " \
                        "WHERE account = $1 ORDER BY created_at, id") \
    X(TOKEN_TOUCH, "UPDATE token SET last_used_at = $1 WHERE id = $2") \
    X(TOKEN_DELETE, "DELETE FROM token WHERE team = $1 AND id = $2 AND ($3 >= 3 OR account = $4)") \
    X(TOKEN_DELETE_OF_MEMBER, "DELETE FROM token WHERE team = $1 AND account = $2") \
    /* projects and runs */ \
    X(PROJECT_ADD, "INSERT INTO project (id, team, name, created_at) VALUES ($1, $2, $3, $4) " \
                   "ON CONFLICT (team, name) DO NOTHING") \
    X(PROJECT_FIND, "SELECT id FROM project WHERE team = $1 AND name = $2") \
    X(PROJECT_LIST, "SELECT p.name, p.created_at, count(r.id) AS runs, 0 AS cursor_number, p.name AS cursor_text " \
                    "FROM project p LEFT JOIN run r ON r.project = p.id WHERE p.team = $1 " \
                    "AND (CAST(0 AS BIGINT), p.name) > ($2, $3) GROUP BY p.id ORDER BY p.name LIMIT $4") \
    X(RUN_ADD, "INSERT INTO run (id, team, project, account, idempotency_key, request_hash, name, model, machine, " \
               "versions_json, config_json, plan_json, graph_digest, budget_bytes, predicted_peak_bytes, " \
               "predicted_step_ns, started_at, stored_bytes) " \
               "VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)") \
    X(RUN_BY_KEY, "SELECT id, request_hash FROM run WHERE team = $1 AND idempotency_key = $2") \
    X(RUN_TEAM, "SELECT team FROM run WHERE id = $1") \
    X(RUN_SHOW, "SELECT " RUN_COLUMNS ", r.graph_digest, r.config_json, r.counters_json " RUN_FROM "WHERE r.id = $1") \
    X(RUN_PLAN, "SELECT plan_json FROM run WHERE id = $1") \
    X(RUN_LIST, "SELECT " RUN_COLUMNS ", r.started_at AS cursor_number, r.id AS cursor_text " RUN_FROM \
                "WHERE r.team = $1 AND ($2 = '' OR p.name = $2) AND ($3 = '' OR r.model = $3) " \
                "AND ($4 = '' OR r.outcome = $4) AND (r.started_at, r.id) < ($5, $6) " \
                "ORDER BY r.started_at DESC, r.id DESC LIMIT $7") \
    X(RUN_STATE, "SELECT last_sequence, last_step, outcome, step_count FROM run WHERE id = $1") \
    X(RUN_APPENDED, "UPDATE run SET last_sequence = $1, last_step = $2, step_count = step_count + $3, " \
                    "sum_step_ns = sum_step_ns + $4, " \
                    "peak_bytes = CASE WHEN peak_bytes IS NULL OR $5 > peak_bytes THEN $5 ELSE peak_bytes END, " \
                    "budget_bytes = coalesce($6, budget_bytes), " \
                    "predicted_peak_bytes = coalesce($7, predicted_peak_bytes), " \
                    "predicted_step_ns = coalesce($8, predicted_step_ns), stored_bytes = stored_bytes + $9 " \
                    "WHERE id = $10") \
    X(RUN_CONFIG, "SELECT config_json FROM run WHERE id = $1") \
    X(RUN_FINISH, "UPDATE run SET outcome = $1, finished_at = $2, counters_json = $3 WHERE id = $4") \
    X(RUN_DELETE, "DELETE FROM run WHERE id = $1") \
    X(RUN_STORED, "UPDATE run SET stored_bytes = stored_bytes + $1 WHERE id = $2") \
    X(RUN_TEAM_USE, "SELECT CAST(coalesce(sum(stored_bytes), 0) AS BIGINT) FROM run WHERE team = $1") \
    X(BATCH_ADD, "INSERT INTO batch (run, sequence, first_step, last_step, steps, data) " \
                 "VALUES ($1, $2, $3, $4, $5, $6)") \
    X(BATCH_LIST, "SELECT steps, data FROM batch WHERE run = $1 AND last_step > $2 ORDER BY sequence") \
    /* the next run that began before $2 and has two batches or more of fewer than $3 steps */ \
    X(RUN_LOOSE, "SELECT r.id FROM run r WHERE r.id > $1 AND r.started_at < $2 AND 2 = (SELECT count(*) FROM " \
                 "(SELECT b.run FROM batch b WHERE b.run = r.id AND b.steps < $3 LIMIT 2) AS loose) " \
                 "ORDER BY r.id LIMIT 1") \
    X(BATCH_TAIL, "SELECT sequence, steps, data FROM batch WHERE run = $1 AND sequence > (SELECT " \
                  "coalesce(max(l.sequence), 0) FROM batch l WHERE l.run = $1 AND l.steps >= $2) " \
                  "ORDER BY sequence LIMIT $3") \
    X(BATCH_DELETE, "DELETE FROM batch WHERE run = $1 AND sequence BETWEEN $2 AND $3") \
    /* artifacts */ \
    X(ARTIFACT_FIND, "SELECT hash, bytes FROM artifact WHERE run = $1 AND kind = $2") \
    X(ARTIFACT_SET, "INSERT INTO artifact (run, kind, hash, bytes, data, stored_at) VALUES ($1, $2, $3, $4, $5, $6) " \
                    "ON CONFLICT (run, kind) DO UPDATE SET hash = excluded.hash, bytes = excluded.bytes, " \
                    "data = excluded.data, stored_at = excluded.stored_at") \
    X(ARTIFACT_SHOW, "SELECT kind, bytes, stored_at FROM artifact WHERE run = $1 AND kind = $2") \
    X(ARTIFACT_LIST, "SELECT kind, bytes, stored_at FROM artifact WHERE run = $1 ORDER BY kind") \
    X(ARTIFACT_DATA, "SELECT data FROM artifact WHERE run = $1 AND kind = $2") \
    /* frontiers */ \
    X(JOB_ADD, "INSERT INTO job (id, team, account, run, points, request_json, created_at) " \
               "VALUES ($1, $2, $3, $4, $5, $6, $7)") \
    X(JOB_TEAM, "SELECT team FROM job WHERE id = $1") \
    X(JOB_WAITING, "SELECT count(*) FROM job WHERE team = $1 AND finished_at IS NULL") \
    X(JOB_SHOW, "SELECT " JOB_COLUMNS "FROM job WHERE id = $1") \
    X(JOB_OF_RUN, \
      "SELECT " JOB_COLUMNS ", result_json FROM job WHERE run = $1 ORDER BY created_at DESC, id DESC LIMIT 1") \
    X(JOB_LIST, \
      "SELECT " JOB_COLUMNS ", created_at AS cursor_number, id AS cursor_text FROM job WHERE team = $1 " \
      "AND ($2 = '' OR run = $2) AND (created_at, id) < ($3, $4) ORDER BY created_at DESC, id DESC LIMIT $5") \
    X(JOB_OF_ACCOUNT, "SELECT team, " JOB_COLUMNS ", CASE WHEN request_json = '' THEN NULL ELSE request_json END " \
                      "AS request_json, result_json FROM job WHERE account = $1 ORDER BY created_at, id") \
    X(JOB_RESULT, "SELECT result_json FROM job WHERE id = $1") \
    X(JOB_NEXT, "SELECT id, request_json FROM job WHERE state = 'queued' ORDER BY created_at, id LIMIT 1") \
    X(JOB_START, "UPDATE job SET state = 'running', started_at = $1 WHERE id = $2") \
    X(JOB_PROGRESS, "UPDATE job SET points_done = $1 WHERE id = $2") \
    X(JOB_END, "UPDATE job SET state = $1, result_json = $2, problem = $3, finished_at = $4, request_json = '', " \
               "points_done = CASE WHEN CAST($2 AS TEXT) IS NULL THEN points_done ELSE points END WHERE id = $5") \
    X(JOB_AGAIN, "UPDATE job SET state = 'queued', points_done = 0, started_at = NULL WHERE state = 'running'") \
    X(JOB_EXPIRE, "DELETE FROM job WHERE finished_at < $1") \
    /* the rest */ \
    X(TELEMETRY_ADD, "INSERT INTO telemetry (received_on, event_json) VALUES ($1, $2)") \
    X(TELEMETRY_ALL, "SELECT event_json FROM telemetry ORDER BY received_on, event_json") \
    X(TELEMETRY_COUNT, "SELECT count(*) FROM telemetry") \
    X(AUDIT_LAST, "SELECT number, hash FROM audit ORDER BY number DESC LIMIT 1") \
    X(AUDIT_ADD, "INSERT INTO audit (number, happened_at, account, team, verb, object, hash) " \
                 "VALUES ($1, $2, $3, $4, $5, $6, $7)") \
    X(AUDIT_FROM, "SELECT number, happened_at, account, team, verb, object, hash FROM audit WHERE number > $1 " \
                  "ORDER BY number LIMIT $2") \
    X(AUDIT_OF_TEAM, "SELECT u.happened_at, u.account, a.name AS account_name, u.verb, u.object, " \
                     "u.number AS cursor_number, '' AS cursor_text FROM audit u LEFT JOIN account a " \
                     "ON a.id = u.account WHERE u.team = $1 AND (u.number, CAST('' AS TEXT)) < ($2, $3) " \
                     "ORDER BY u.number DESC LIMIT $4") \
    X(AUDIT_OF_ACCOUNT, "SELECT number, happened_at, account, team, verb, object FROM audit " \
                        "WHERE account = $1 OR object = $1 ORDER BY number") \
    X(TELEMETRY_FORGET, "DELETE FROM telemetry WHERE received_on < $1") \
    X(OPERATOR_ACCOUNTS, "SELECT a.id, a.email, a.name, a.is_operator, a.created_at, count(m.team) AS teams " \
                         "FROM account a LEFT JOIN member m ON m.account = a.id WHERE a.email > $1 " \
                         "GROUP BY a.id ORDER BY a.email LIMIT $2") \
    X(OPERATOR_TEAMS, \
      "SELECT t.id, t.name, (SELECT count(*) FROM member m WHERE m.team = t.id) AS members, " \
      "count(r.id) AS runs, CAST(coalesce(sum(r.stored_bytes), 0) AS BIGINT) AS stored_bytes FROM team t " \
      "LEFT JOIN run r ON r.team = t.id GROUP BY t.id ORDER BY stored_bytes DESC, t.id LIMIT $1") \
    X(DATABASE_BYTES, "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()") \
    X(COUNT_JOBS, "SELECT count(*) FROM job WHERE state = $1") \
    X(OPERATOR_JOBS, "SELECT j.id, t.name AS team, j.state, j.points, j.points_done, j.problem, j.created_at, " \
                     "j.finished_at, j.created_at AS cursor_number, j.id AS cursor_text FROM job j JOIN team t " \
                     "ON t.id = j.team WHERE (j.created_at, j.id) < ($1, $2) " \
                     "ORDER BY j.created_at DESC, j.id DESC LIMIT $3") \
    X(COUNT_RUNS, "SELECT count(*) FROM run") \
    X(COUNT_STEPS, "SELECT CAST(coalesce(sum(step_count), 0) AS BIGINT) FROM run")

#define MSS_POSTGRES_TABLE(X) X(DATABASE_BYTES, "SELECT pg_database_size(current_database())")

/* The lead and the write lock (postgres.c) are locks on numbers: the letters of "memscale", and their successor. */
#define MSS_SHARED_TABLE(X) \
    X(LEAD, "SELECT pg_try_advisory_lock(7882827065137917030)") \
    X(NOTIFY, "SELECT pg_notify('memscale_live', $1)") \
    X(BUCKET_READ, "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT) * 1000 AS now_ns, " \
                   "(SELECT full_at_ns FROM bucket WHERE key = $1) AS full_at_ns") \
    /* changes nothing if another server has changed the bucket since it was read */ \
    X(BUCKET_SET, "INSERT INTO bucket (key, full_at_ns) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE " \
                  "SET full_at_ns = excluded.full_at_ns WHERE bucket.full_at_ns = $3") \
    X(BUCKET_EXPIRE, "DELETE FROM bucket WHERE full_at_ns < $1")

enum {
#define MSS_STATEMENT_ENUM(name, text) MSS_##name,
    MSS_STATEMENT_TABLE(MSS_STATEMENT_ENUM) MSS_SHARED_TABLE(MSS_STATEMENT_ENUM)
#undef MSS_STATEMENT_ENUM
        MSS_STATEMENT_COUNT,
    MSS_FIRST_SHARED = MSS_LEAD /* from here on those of a shared database alone */
};

#endif
