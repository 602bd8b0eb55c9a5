/* Lists in pages; see api.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"

enum { PAGE_MOST = 200, PAGE_USUAL = 50, OWN_VALUES_MOST = 6 };

/* "<number>-<text>", of the last item of the page before. */
bool mss_list_position(const mss_request *r, const mss_list *list, mss_position *at)
{
    const char *cursor = mss_pairs_get(&r->query, list->cursor != NULL ? list->cursor : "cursor");
    *at = (mss_position){.number = list->order == MSS_FALLING ? INT64_MAX : -1};
    if (cursor == NULL) {
        return true;
    }
    size_t digits = strspn(cursor, "0123456789");
    if (digits < 1 || digits > 18 || cursor[digits] != '-' || strlen(cursor + digits + 1) >= sizeof at->text) {
        return false;
    }
    at->number = strtoll(cursor, NULL, 10);
    strcpy(at->text, cursor + digits + 1);
    mss_id id = mss_id_of(at->text);
    return !list->is_by_id || mss_id_is(&id);
}

/* One more item was asked for than the page holds, to see whether there is more. */
static json_t *make_page(json_t *items, const mss_list *list, int64_t limit)
{
    bool has_more = (int64_t)json_array_size(items) > limit;
    json_t *next = NULL;
    if (has_more) {
        json_array_remove(items, (size_t)limit);
        const json_t *last = json_array_get(items, (size_t)limit - 1);
        next = json_sprintf("%" JSON_INTEGER_FORMAT "-%s", json_integer_value(json_object_get(last, "cursor_number")),
                            json_string_value(json_object_get(last, "cursor_text")));
    }
    for (size_t i = 0; i < json_array_size(items); i++) {
        json_t *item = json_array_get(items, i);
        json_object_del(item, "cursor_number");
        json_object_del(item, "cursor_text");
        if (list->map != NULL) {
            list->map(item);
        }
    }
    return json_pack("{s:o, s:o?}", "items", items, "next_cursor", has_more ? next : json_null());
}

json_t *mss_api_page(mss_request *r, const mss_list *list, const mss_value *values, size_t count, int *status)
{
    ms_error err;
    mss_position at;
    mss_value all[OWN_VALUES_MOST + 3];
    int64_t limit = mss_api_query_number(r, "limit", PAGE_USUAL, PAGE_MOST);
    if (limit < 1 || !mss_list_position(r, list, &at)) {
        *status =
            mss_answer_problem(r, 400, "The limit must be 1 to %d, and the cursor one that was given.", PAGE_MOST);
        return NULL;
    }
    const mss_value behind[] = {MSS_INT(at.number), MSS_TEXT(at.text), MSS_INT(limit + 1)};
    memcpy(all, values, count * sizeof *values);
    memcpy(all + count, behind, sizeof behind);
    json_t *items = mss_sql_objects(r->sql, list->statement, all, count + 3, &err);
    json_t *page = items != NULL ? make_page(items, list, limit) : NULL;
    if (page == NULL) {
        *status = items != NULL ? mss_answer_text(r, 200, NULL, NULL) : mss_answer_failure(r, &err);
    }
    return page;
}

int mss_api_list(mss_request *r, const mss_list *list, const mss_value *values, size_t count)
{
    int status = 200;
    json_t *page = mss_api_page(r, list, values, count, &status);
    return page != NULL ? mss_answer_json(r, 200, page) : status;
}
