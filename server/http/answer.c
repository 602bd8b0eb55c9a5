/* What handlers answer with; see http.h. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "http/http.h"

static void set_text(mss_request *request, const char *type, char *text)
{
    ms_free(request->answer.text);
    request->answer.text = text;
    request->answer.fixed = NULL;
    request->answer.type = type;
    request->answer.bytes = strlen(text);
}

int mss_answer_text(mss_request *request, int status, const char *type, char *text)
{
    if (text == NULL) {
        return mss_answer_failure(request, &(ms_error){.code = MS_ENOMEM, .text = "out of memory for the answer"});
    }
    set_text(request, type, text);
    return status;
}

int mss_answer_json(mss_request *request, int status, json_t *tree)
{
    char *text = tree != NULL ? ms__json_text(tree, true) : NULL;
    json_decref(tree);
    return mss_answer_text(request, status, "application/json", text);
}

int mss_answer_empty(mss_request *request)
{
    ms_free(request->answer.text);
    request->answer.text = NULL;
    request->answer.fixed = "";
    request->answer.bytes = 0;
    request->answer.type = NULL;
    return 204;
}

int mss_answer_redirect(mss_request *request, const char *fmt, ...)
{
    va_list arguments;
    va_start(arguments, fmt);
    vsnprintf(request->answer.location, sizeof request->answer.location, fmt, arguments);
    va_end(arguments);
    mss_answer_empty(request);
    return 303;
}

static const char *title_of(int status)
{
    static const struct {
        int status;
        const char *title;
    } titles[] = {
        {400, "Malformed request"},  {401, "Sign-in needed"},   {403, "Not allowed"}, {404, "Not found"},
        {405, "Method not allowed"}, {408, "Too slow"},         {409, "Conflict"},    {411, "Length needed"},
        {413, "Too large"},          {415, "Wrong media type"}, {421, "Wrong host"},  {422, "Not acceptable content"},
        {429, "Too many requests"},  {500, "Server error"},     {503, "Busy"},        {507, "Quota used up"},
    };
    for (size_t i = 0; i < sizeof titles / sizeof titles[0]; i++) {
        if (titles[i].status == status) {
            return titles[i].title;
        }
    }
    return "Error";
}

bool mss_request_is_api(const mss_request *request)
{
    return request->path[0] == '\0' || strncmp(request->path, "/api/", 5) == 0 ||
           (request->route != NULL && request->route->lane == MSS_LANE_INLINE) ||
           strcmp(request->path, "/metrics") == 0 || strcmp(request->path, "/readyz") == 0;
}

static int problem_json(mss_request *request, int status, const char *detail)
{
    ms__json_writer writer = {0};
    json_t *problem = ms__json_new(&writer);
    ms__json_put_string(&writer, problem, "type", "about:blank");
    ms__json_put_string(&writer, problem, "title", title_of(status));
    ms__json_put_u64(&writer, problem, "status", (uint64_t)status);
    ms__json_put_string(&writer, problem, "detail", detail);
    ms__json_put_string(&writer, problem, "instance", request->id);
    char *text = writer.code == MS_OK ? ms__json_text(problem, true) : NULL;
    json_decref(problem);
    if (text == NULL) { /* memory is out: the least that is still a problem document */
        static const char least[] = "{\"title\":\"Busy\",\"status\":503}";
        mss_answer_empty(request);
        request->answer.fixed = least;
        request->answer.bytes = sizeof least - 1;
        request->answer.type = "application/problem+json";
        return 503;
    }
    set_text(request, "application/problem+json", text);
    return status;
}

int mss_answer_problem(mss_request *request, int status, const char *fmt, ...)
{
    char detail[MS_ERROR_TEXT_MAX];
    va_list arguments;
    va_start(arguments, fmt);
    vsnprintf(detail, sizeof detail, fmt, arguments);
    va_end(arguments);
    ms_free(request->answer.event);
    request->answer.event = NULL;
    request->answer.watch = (mss_id){""};
    request->answer.cookie[0] = '\0';
    request->answer.location[0] = '\0';
    mss_problem_page page = mss_server_settings(request->server)->problem_page;
    if (mss_request_is_api(request) || page == NULL) {
        return problem_json(request, status, detail);
    }
    return page(request, status, title_of(status), detail);
}

int mss_answer_failure(mss_request *request, const ms_error *err)
{
    bool is_gone = err->code == MS_EIO;
    bool is_passing = is_gone || err->code == MS_ENOMEM || err->code == MS_ENOSPC || err->code == MS_ETIMEDOUT;
    snprintf(request->reason, sizeof request->reason, "%s", err->text);
    request->answer.retry_after_s = is_passing ? 10 : 0;
    request->answer.keeps_writes = false;
    return is_gone      ? mss_answer_problem(request, 503, "The server can't reach its database at the moment.")
           : is_passing ? mss_answer_problem(request, 503, "The server has no room at the moment.")
                        : mss_answer_problem(
                              request, 500, "The server failed. Its log says more under this number: %s.", request->id);
}
