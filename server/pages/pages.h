/*
 * pages.h - the pages: HTML from templates, and the forms that they send. They use the API's permissions and
 * functions. Only charts need a script.
 */
#ifndef MSS_PAGES_PAGES_H
#define MSS_PAGES_PAGES_H

#include "http/http.h"

int mss_page_home(mss_request *r);
int mss_page_asset(mss_request *r);

int mss_page_sign_in(mss_request *r);
int mss_page_sign_in_prepare(mss_request *r);
int mss_page_sign_in_sent(mss_request *r);
int mss_page_sign_in_code(mss_request *r);
int mss_page_sign_out(mss_request *r);
int mss_page_welcome(mss_request *r);
int mss_page_welcome_prepare(mss_request *r);
int mss_page_welcome_sent(mss_request *r);

int mss_page_runs(mss_request *r);
int mss_page_run(mss_request *r);
int mss_page_run_delete(mss_request *r);
int mss_page_run_frontier(mss_request *r);
int mss_page_compare(mss_request *r);
int mss_page_projects(mss_request *r);

int mss_page_team(mss_request *r);
int mss_page_team_make(mss_request *r);
int mss_page_team_delete(mss_request *r);
int mss_page_invite(mss_request *r);
int mss_page_withdraw(mss_request *r);
int mss_page_member(mss_request *r);
int mss_page_leave(mss_request *r);
int mss_page_tokens(mss_request *r);
int mss_page_token_make(mss_request *r);
int mss_page_token_revoke(mss_request *r);

int mss_page_account(mss_request *r);
int mss_page_password_prepare(mss_request *r);
int mss_page_password_sent(mss_request *r);
int mss_page_account_delete(mss_request *r);
/* The `prepare` of forms that ask for the account's password, in their field "password", and have nothing else to do. */
int mss_page_password_ask(mss_request *r);

int mss_page_second_factor_begin(mss_request *r);
int mss_page_second_factor_confirm(mss_request *r);
int mss_page_second_factor_off(mss_request *r);
int mss_page_recovery_codes(mss_request *r);

int mss_page_privacy(mss_request *r);
int mss_page_reference(mss_request *r);

int mss_page_operator(mss_request *r);
int mss_page_telemetry_forget(mss_request *r);

/* Add the text of a member "..._bytes" or "..._ns" under `text_name`; "-" if it is missing. */
void mss_page_bytes_text(json_t *object, const char *name, const char *text_name);
void mss_page_duration_text(json_t *object, const char *name, const char *text_name);
/* Adds the texts of a run: its title, sizes and times, and whether it is running. */
void mss_page_run_texts(json_t *run);
/* Adds the text of a time such as "2026-01-31T12:00:00.000Z", to the second. */
void mss_page_time_text(json_t *object, const char *name, const char *text_name);

/* A refusal as a page: mss_settings.problem_page. */
int mss_page_problem(mss_request *r, int status, const char *title, const char *detail);

/* ---- signing in: what entry.c and second_factor.c share ------------------------------- */

/* Starts a session and sets its cookie. The session that came with the request, if any, ends: nobody else knows the new
 * one. `verb` is for the audit. */
MS_NODISCARD int mss_page_start_session(mss_request *r, const mss_id *account, const char *verb, ms_error *err);
/* The same, after the end of all sessions of the account and of its sign-ins that wait for a code. */
MS_NODISCARD int mss_page_start_only_session(mss_request *r, const mss_id *account, const char *verb, ms_error *err);
/* Counts a guess of a password or a code; 0, or the status of a refusal. One bucket per account and address: guesses
 * from elsewhere don't lock the owner out. */
int mss_page_limit_guesses(mss_request *r, const char *email);
/* Answers with the page that asks for the code of a sign-in whose password was right. */
int mss_page_sign_in_wait(mss_request *r, const mss_id *account);
/* Answers that a sign-in has to begin again: its code came too late, or was wrong too often. */
int mss_page_sign_in_over(mss_request *r);
/* If the account has a second factor, the form's field "code" must be right: 0, or the status of a refusal. It guards
 * what a stolen session and a password must not be enough for. In the write lane. */
int mss_page_code_ask(mss_request *r);

/* ---- showing ------------------------------------------------------------------ */

/* Renders `name` in the layout. Takes over `data`, and adds what every page shows: the account, its teams, the
 * form token. */
int mss_page_show(mss_request *r, int status, const char *name, json_t *data);
/* A form's field; "" if it is missing. */
const char *mss_page_field(const mss_request *r, const char *name);
/* Sets the session cookie to this secret; NULL deletes it. */
void mss_page_set_cookie(mss_request *r, const char *secret);

#endif
