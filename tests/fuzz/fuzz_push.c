/*
 * Any log and any answers: up to the first line "==" the input is a log, behind it lies one answer a line, its
 * first byte the status. No answer makes a request that is no JSON or goes elsewhere, and none makes requests follow
 * each other for ever without a pause.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "base/json.h"
#include "fuzz.h"
#include "observability/push.h"

enum { TURNS_MOST = 300 };
#define HOUR_NS ((uint64_t)3600 * 1000000000)

static const int statuses[] = {0, 200, 201, 204, 200, 301, 400, 401, 404, 409, 413, 422, 429, 500, 503, 200};

static void check_request(const ms__push_request *request)
{
    json_t *tree;
    ms__json_at root;
    FUZZ_CHECK(strncmp(request->target, "/api/v1/runs", 12) == 0);
    FUZZ_CHECK(strpbrk(request->target, ".%?#\\ \r\n") == NULL);
    FUZZ_CHECK(ms__json_parse(request->body, strlen(request->body), "body", &tree, &root, NULL) == MS_OK);
    FUZZ_CHECK(strstr(request->body, "SECRET") == NULL);
    json_decref(tree);
}

/* The next answer of the script; its last one again at its end. */
static ms__push_answer next_answer(const char **script)
{
    size_t length = strcspn(*script, "\n");
    ms__push_answer answer = {.status = statuses[(unsigned char)(*script)[0] % 16], .body = *script, .length = length};
    if (length > 0) {
        answer.body++;
        answer.length--;
    }
    if ((*script)[length] == '\n' && (*script)[length + 1] != '\0') {
        *script += length + 1;
    }
    return answer;
}

static void push_all(ms__push *push, const char *script)
{
    uint64_t now_ns = 1;
    for (int i = 0; i < TURNS_MOST; i++) {
        ms__push_turn turn;
        ms_error err = {0};
        FUZZ_CHECK(ms__push_next(push, now_ns, &turn, &err) == MS_OK);
        if (turn.state == MS__PUSH_IDLE || turn.state == MS__PUSH_STOPPED) {
            return;
        }
        if (turn.state == MS__PUSH_SEND) {
            check_request(&turn.request);
            ms__push_answer answer = next_answer(&script);
            ms__push_answered(push, now_ns, &answer);
        } else {
            now_ns += HOUR_NS;
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = fuzz_text(data, size), path[64];
    char *script = strstr(text, "\n==\n");
    size_t length = script != NULL ? (size_t)(script + 1 - text) : strlen(text);
    ms__push_options options = {.is_ended = size % 2 == 0};
    ms__push *push;
    uint64_t blocks = ms_memory_live_blocks();
    int fd = memfd_create("log", MFD_CLOEXEC);
    FUZZ_CHECK(fd >= 0 && write(fd, text, length) == (ssize_t)length);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    FUZZ_CHECK(ms__push_new(&options, &push, NULL) == MS_OK);
    FUZZ_CHECK(ms__push_add(push, path, false, NULL) == MS_OK);
    push_all(push, script != NULL ? script + 4 : "");
    for (char *line = ms__push_news(push); line != NULL; line = ms__push_news(push)) {
        FUZZ_CHECK(line[0] != '\0' && strchr(line, '\n') == NULL);
        ms_free(line);
    }
    ms__push_free(push);
    close(fd);
    free(text);
    FUZZ_CHECK(ms_memory_live_blocks() == blocks);
    return 0;
}
