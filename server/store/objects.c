/* Rows as JSON; see sql.h. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "log/log.h"
#include "store/driver.h"

static bool ends_in(const char *text, const char *ending)
{
    size_t length = strlen(text), wanted = strlen(ending);
    return length > wanted && strcmp(text + length - wanted, ending) == 0;
}

static json_t *time_value(int64_t time_ms)
{
    char text[MSS_TIME_TEXT_BYTES];
    mss_time_text(time_ms, text);
    return json_string(text);
}

static json_t *column_value(const mss_rows *rows, int column, const char *name)
{
    if (mss_rows_is_null(rows, column)) {
        return json_null();
    }
    if (ends_in(name, "_at")) {
        return time_value(mss_rows_int(rows, column));
    }
    if (strncmp(name, "is_", 3) == 0 || strncmp(name, "has_", 4) == 0) {
        return json_boolean(mss_rows_int(rows, column) != 0);
    }
    if (ends_in(name, "_json")) {
        return json_loads(mss_rows_text(rows, column), JSON_DECODE_ANY, NULL);
    }
    bool is_number = rows->sql->driver->kind(rows->sql->database, rows->statement, column) == MSS_IS_INT;
    return is_number ? json_integer(mss_rows_int(rows, column)) : json_string(mss_rows_text(rows, column));
}

static void add_row(ms__json_writer *writer, json_t *array, const mss_rows *rows)
{
    json_t *object = ms__json_add_object(writer, array);
    const mss_driver *driver = rows->sql->driver;
    for (int i = 0; i < driver->columns(rows->sql->database, rows->statement); i++) {
        char name[64];
        snprintf(name, sizeof name, "%s", driver->name(rows->sql->database, rows->statement, i));
        json_t *value = column_value(rows, i, name);
        if (ends_in(name, "_json")) {
            name[strlen(name) - strlen("_json")] = '\0';
        }
        ms__json_put_value(writer, object, name, value);
    }
}

json_t *mss_sql_objects(mss_sql *sql, mss_statement statement, const mss_value *values, size_t count, ms_error *err)
{
    ms__json_writer writer = {0};
    json_t *root = ms__json_new(&writer), *array = ms__json_put_array(&writer, root, "rows");
    mss_rows rows;
    bool has = true;
    int rc = mss_sql_query(sql, statement, values, count, &rows, err);
    while (rc == MS_OK && (rc = mss_rows_next(&rows, &has, err)) == MS_OK && has) {
        add_row(&writer, array, &rows);
    }
    mss_rows_end(&rows);
    if (rc == MS_OK && writer.code != MS_OK) {
        rc = ms_fail(err, writer.code, "%s: a row can't be written as JSON", mss_statement_name(statement));
    }
    json_t *result = rc == MS_OK ? json_incref(array) : NULL;
    json_decref(root);
    return result;
}

json_t *mss_sql_object(mss_sql *sql, mss_statement statement, const mss_value *values, size_t count, ms_error *err)
{
    json_t *all = mss_sql_objects(sql, statement, values, count, err);
    if (all == NULL) {
        return NULL;
    }
    json_t *first = json_array_size(all) > 0 ? json_incref(json_array_get(all, 0)) : json_null();
    json_decref(all);
    return first;
}
