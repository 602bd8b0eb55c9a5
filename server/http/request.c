#include "http/request.h"

#include <string.h>

#include "base/json.h"
#include "base/units.h"

bool mss_request_add(mss_request *request, const char *data, size_t bytes)
{
    if (request->body_bytes + bytes > request->route->body_most_bytes) {
        return false;
    }
    if (request->body_bytes + bytes + 1 > request->body_room) {
        size_t room = (size_t)ms__max_u64(2 * request->body_room, request->body_bytes + bytes + 1);
        char *larger = ms_realloc_array(request->body, room, 1);
        if (larger == NULL) {
            return false;
        }
        request->body = larger;
        request->body_room = room;
    }
    memcpy(request->body + request->body_bytes, data, bytes);
    request->body_bytes += bytes;
    request->body[request->body_bytes] = '\0';
    return true;
}

int mss_request_parse(mss_request *request)
{
    ms_error err;
    const char *body = request->body != NULL ? request->body : "";
    if (request->route->body == MSS_BODY_FORM) {
        int rc = mss_pairs_read(body, request->body_bytes, &request->form, &err);
        return rc == MS_OK        ? 0
               : rc == MS_EFORMAT ? mss_answer_problem(request, 400, "The form is malformed.")
                                  : mss_answer_failure(request, &err);
    }
    if (request->route->body == MSS_BODY_JSON) {
        ms__json_at root;
        int rc = ms__json_parse(body, request->body_bytes, "body", &request->json, &root, &err);
        return rc == MS_OK        ? 0
               : rc == MS_EFORMAT ? mss_answer_problem(request, 400, "%s", err.text)
                                  : mss_answer_failure(request, &err);
    }
    return 0;
}

void mss_request_wipe(mss_request *request)
{
    mss_pairs_free(&request->query);
    if (request->form.text != NULL) { /* passwords */
        mss_secret_wipe(request->form.text, 2 * request->body_bytes);
    }
    mss_pairs_free(&request->form);
    json_decref(request->json);
    if (request->body != NULL) {
        mss_secret_wipe(request->body, request->body_room);
    }
    ms_free(request->body);
    ms_free(request->answer.text);
    ms_free(request->answer.event);
    mss_secret_wipe(request, sizeof *request);
}
