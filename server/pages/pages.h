/*
 * pages.h - what people see: HTML from templates, and the forms that these send. The same permissions and
 * the same functions of the API stand behind them; no page needs a script but the charts.
 */
#ifndef MSS_PAGES_PAGES_H
#define MSS_PAGES_PAGES_H

#include "http/http.h"

int mss_page_home(mss_request *r);
int mss_page_asset(mss_request *r);

int mss_page_sign_in(mss_request *r);
int mss_page_sign_in_prepare(mss_request *r);
int mss_page_sign_in_sent(mss_request *r);
int mss_page_sign_out(mss_request *r);
int mss_page_welcome(mss_request *r);
int mss_page_welcome_prepare(mss_request *r);
int mss_page_welcome_sent(mss_request *r);

int mss_page_runs(mss_request *r);
int mss_page_run(mss_request *r);
int mss_page_run_delete(mss_request *r);
int mss_page_compare(mss_request *r);

int mss_page_team(mss_request *r);
int mss_page_team_make(mss_request *r);
int mss_page_invite(mss_request *r);
int mss_page_member(mss_request *r);
int mss_page_leave(mss_request *r);
int mss_page_tokens(mss_request *r);
int mss_page_token_make(mss_request *r);
int mss_page_token_revoke(mss_request *r);

int mss_page_account(mss_request *r);
int mss_page_password_prepare(mss_request *r);
int mss_page_password_sent(mss_request *r);
int mss_page_account_delete_prepare(mss_request *r);
int mss_page_account_delete(mss_request *r);

/* A refusal as a page: mss_settings.problem_page. */
int mss_page_problem(mss_request *r, int status, const char *title, const char *detail);

/* Renders `name` within the layout. Takes `data` over and adds what every page shows: who is signed in,
 * their teams, the form token. */
int mss_page_show(mss_request *r, int status, const char *name, json_t *data);
/* A form's field; "" where it is missing. */
const char *mss_page_field(const mss_request *r, const char *name);
/* The session cookie with this secret; NULL ends it. */
void mss_page_set_cookie(mss_request *r, const char *secret);

#endif
