/* Templates: what users wrote is text, whatever it is; sections; templates that are wrong. */
#include "base/json.h"
#include "pages/template.h"
#include "test_common.h"

static void check(const char *template, const char *inner, const char *data, const char *expected)
{
    char *html = NULL;
    ms_error err;
    json_t *tree = json_loads(data, 0, NULL);
    assert_non_null(tree);
    assert_ms_ok(mss_template_render(template, inner, tree, &html, &err), err);
    assert_string_equal(html, expected);
    ms_free(html);
    json_decref(tree);
}

static void test_values_are_escaped(void **state)
{
    (void)state;
    check("<p title=\"{{a}}\">{{a}}</p>", NULL, "{\"a\":\"<b>&\\\"'{{a}}\"}",
          "<p title=\"&lt;b&gt;&amp;&quot;&#39;{{a}}\">&lt;b&gt;&amp;&quot;&#39;{{a}}</p>");
    check("?a={{%a}}{{%n}}{{%missing}}", NULL, "{\"a\":\"aZ0-._~ &=/?#\\\"'<>\\u00e9\",\"n\":5}",
          "?a=aZ0-._~%20%26%3D%2F%3F%23%22%27%3C%3E%C3%A9");
    check("{{n}}{{missing}}{{t}}", NULL, "{\"n\":-5,\"t\":true}", "-5");
}

static void test_sections(void **state)
{
    (void)state;
    check("{{#l}}[{{x}}{{y}}]{{/l}}", NULL, "{\"y\":\"o\",\"l\":[{\"x\":1},{\"x\":2,\"y\":\"i\"}]}", "[1o][2i]");
    check("{{#l}}x{{/l}}{{^l}}none{{/l}}", NULL, "{\"l\":[]}", "none");
    check("{{#a}}yes{{/a}}{{^a}}no{{/a}}", NULL, "{\"a\":\"\"}", "no");
    check("{{#a}}yes{{/a}}{{^b}}no{{/b}}", NULL, "{\"a\":true,\"b\":false}", "yesno");
    check("{{#a}}{{#a}}{{v}}{{/a}}{{/a}}", NULL, "{\"a\":{\"v\":1,\"a\":{\"v\":2}}}", "2");
}

static void test_a_layout_holds_its_page(void **state)
{
    (void)state;
    check("<{{>page}}>", "{{a}}", "{\"a\":\"x\"}", "<x>");
    check("<{{>page}}>", NULL, "{}", "<>");
}

static void test_wrong_templates_are_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {"{{#a}}", "{{a", "{{}}", "{{a}", "{{#a}}{{^a}}{{/a}}", "{{#d}}{{>page}}{{/d}}"};
    json_t *data = json_loads("{\"a\":1,\"d\":{}}", 0, NULL);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        char *html = NULL;
        ms_error err;
        const char *inner = i == 5 ? "{{#a}}" : NULL;
        assert_ms_fails(mss_template_render(texts[i], inner, data, &html, &err), MS_EFORMAT, err, "template");
        assert_null(html);
    }
    json_decref(data);
}

int main(void)
{
    ms__json_writer writer = {0};
    json_decref(ms__json_new(&writer)); /* jansson's memory is ours from here on */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_are_escaped),
        cmocka_unit_test(test_sections),
        cmocka_unit_test(test_a_layout_holds_its_page),
        cmocka_unit_test(test_wrong_templates_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
