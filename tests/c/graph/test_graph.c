/* Graph documents are read strictly, with the place in every error; contradictions are refused; a document is
 * written again byte for byte. */
#include "base/json.h"
#include "graph_fixture.h"

/* A root node, two calls of one layer that share a profile, a root node. Every kind of
 * event, role and flag occurs. */
static const char sound[] =
    "{\"version\":1,\"model\":\"Toy\",\"signature\":\"x:float32[2,8]\",\"source\":\"static\","
    "\"residents\":{\"parameter_bytes\":100,\"trainable_bytes\":60,\"buffer_bytes\":12,"
    "\"batch_bytes\":16,\"largest_parameter_bytes\":40},"
    "\"loop\":{\"outputs_held\":true,\"gradients_live_in_forward\":false,\"observed\":true,"
    "\"optimizer_state_bytes\":120,\"optimizer_transient_bytes\":80,\"external_loss_bytes\":7},"
    "\"small_products\":true,\"convolutions\":3,\"half_products\":5,\"libc_buffer_bytes\":9,"
    "\"storages\":["
    "{\"bytes\":16,\"role\":\"batch\",\"first_node\":1,\"last_node\":2},"
    "{\"bytes\":64,\"role\":\"activation\",\"first_node\":0,\"last_node\":1},"
    "{\"bytes\":64,\"role\":\"activation\",\"first_node\":1,\"last_node\":2},"
    "{\"bytes\":64,\"role\":\"output\",\"first_node\":2,\"last_node\":3},"
    "{\"bytes\":64,\"role\":\"activation\",\"first_node\":3,\"last_node\":2},"
    "{\"bytes\":64,\"role\":\"activation\",\"first_node\":2,\"last_node\":1},"
    "{\"bytes\":64,\"role\":\"activation\",\"first_node\":1,\"last_node\":0},"
    "{\"bytes\":40,\"role\":\"gradient\",\"first_node\":0,\"last_node\":0}],"
    "\"profiles\":["
    "{\"storage_bytes\":[64,64,40],\"external_count\":3,\"inputs\":[],"
    "\"forward\":[[\"alloc\",0]],\"backward\":[[\"alloc\",2],[\"free\",1]]},"
    "{\"storage_bytes\":[64,16,64,64,64,8],\"external_count\":5,\"inputs\":[0,1],"
    "\"forward\":[[\"alloc\",5],[\"work\",4096,200],[\"save\",5],[\"free\",5],[\"alloc\",2],[\"save\",0],"
    "[\"free\",0]],"
    "\"backward\":[[\"need\",0],[\"alloc\",4],[\"work\",8192,400,6,9,2,7],[\"drop\",0],[\"free\",3],[\"drop\",5]]},"
    "{\"storage_bytes\":[64,64],\"external_count\":2,\"inputs\":[],"
    "\"forward\":[[\"work\",0,64],[\"free\",0]],\"backward\":[[\"alloc\",1]]}],"
    "\"nodes\":["
    "{\"name\":\"\",\"kind\":\"root\",\"call\":0,\"flags\":[],\"profile\":0,\"externals\":[1,6,7]},"
    "{\"name\":\"h\",\"kind\":\"layer\",\"call\":0,\"flags\":[\"chained\",\"mutates_input\","
    "\"opaque_argument\",\"updates_buffers\",\"uses_rng\",\"no_tensor_input\",\"unhookable\"],"
    "\"profile\":1,\"externals\":[1,0,2,5,6]},"
    "{\"name\":\"h\",\"kind\":\"layer\",\"call\":1,\"flags\":[],\"profile\":1,\"externals\":[2,0,3,4,5]},"
    "{\"name\":\"\",\"kind\":\"root\",\"call\":1,\"flags\":[],\"profile\":2,\"externals\":[3,4]}]}";

static ms_graph *parse_sound(void)
{
    ms_graph *graph;
    assert_ms_ok(ms_graph_parse(sound, &graph, &err), err);
    return graph;
}

/* The sound document with the first `from` replaced by `to`; to be freed. */
static char *changed(const char *from, const char *to)
{
    const char *at = strstr(sound, from);
    if (at == NULL) {
        fail_msg("the sound document has no %s", from);
    }
    char *text = malloc(sizeof sound + strlen(to));
    assert_non_null(text);
    sprintf(text, "%.*s%s%s", (int)(at - sound), sound, to, at + strlen(from));
    return text;
}

/* ---- reading and writing ------------------------------------------------------ */

static void a_document_is_read_and_written_byte_for_byte(void **state)
{
    (void)state;
    ms_graph *graph = parse_sound();
    char *text = ms_graph_to_json(graph);
    assert_string_equal(text, sound);
    ms_free(text);
    ms_graph_free(graph);
}

static void every_member_is_read_into_its_field(void **state)
{
    (void)state;
    ms_graph *graph = parse_sound();
    assert_true(graph->small_products);
    assert_int_equal(graph->convolutions, 3);
    assert_int_equal(graph->half_products, 5);
    assert_int_equal(graph->libc_buffer_bytes, 9);
    assert_string_equal(graph->model, "Toy");
    assert_string_equal(graph->signature, "x:float32[2,8]");
    assert_string_equal(graph->source, "static");
    assert_int_equal(graph->residents.parameter_bytes, 100);
    assert_int_equal(graph->residents.trainable_bytes, 60);
    assert_int_equal(graph->residents.buffer_bytes, 12);
    assert_int_equal(graph->residents.batch_bytes, 16);
    assert_int_equal(graph->residents.largest_parameter_bytes, 40);
    assert_true(graph->loop.outputs_held && graph->loop.observed);
    assert_false(graph->loop.gradients_live_in_forward);
    assert_int_equal(graph->loop.optimizer_state_bytes, 120);
    assert_int_equal(graph->loop.optimizer_transient_bytes, 80);
    assert_int_equal(graph->loop.external_loss_bytes, 7);
    assert_int_equal(graph->storages[3].role, MS_STORAGE_OUTPUT);
    assert_int_equal(graph->storages[4].first_node, 3);
    assert_int_equal(graph->storages[4].last_node, 2);
    const ms_profile *profile = &graph->profiles[1];
    assert_int_equal(profile->storage_count, 6);
    assert_int_equal(profile->external_count, 5);
    assert_int_equal(profile->input_count, 2);
    assert_int_equal(profile->forward[1].kind, MS_EVENT_WORK);
    assert_int_equal(profile->forward[1].flops, 4096);
    assert_int_equal(profile->forward[1].draws, 0);
    assert_int_equal(profile->backward[2].draws, 6);
    assert_int_equal(profile->backward[2].evaluations, 9);
    assert_int_equal(profile->backward[2].precision, MS_PRECISION_FP16);
    assert_int_equal(profile->backward[2].moved_bytes, 7);
    assert_int_equal(profile->forward[1].precision, MS_PRECISION_AS_IS);
    assert_int_equal(profile->forward[1].bytes, 200);
    assert_int_equal(profile->forward[2].kind, MS_EVENT_SAVE);
    assert_int_equal(profile->forward[2].storage, 5);
    assert_int_equal(graph->nodes[1].flags, MS_NODE_CHAINED | MS_NODE_MUTATES_INPUT | MS_NODE_OPAQUE_ARGUMENT |
                                                MS_NODE_UPDATES_BUFFERS | MS_NODE_USES_RNG | MS_NODE_NO_TENSOR_INPUT |
                                                MS_NODE_UNHOOKABLE);
    assert_int_equal(graph->nodes[2].externals[4], 5);
    ms_graph_free(graph);
}

static void spaces_and_order_of_members_do_not_matter(void **state)
{
    (void)state;
    char *text = changed("{\"version\":1,\"model\":\"Toy\",", "{ \"model\" : \"Toy\",\n\"version\": 1,");
    ms_graph *graph;
    assert_ms_ok(ms_graph_parse(text, &graph, &err), err);
    char *written = ms_graph_to_json(graph);
    assert_string_equal(written, sound);
    ms_free(written);
    ms_graph_free(graph);
    free(text);
}

static void a_copy_is_equal_and_independent(void **state)
{
    (void)state;
    ms_graph *graph = parse_sound();
    ms_graph *copy = ms_graph_copy(graph, &err);
    assert_non_null(copy);
    ms_graph_free(graph);
    char *text = ms_graph_to_json(copy);
    assert_string_equal(text, sound);
    ms_free(text);
    ms_graph_free(copy);
    ms_graph_free(NULL);
}

/* ---- refusals ----------------------------------------------------------------- */

typedef struct change {
    const char *from, *to;
    int code;
    const char *error;
} change;

static void assert_refused(const change *changes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char *text = changed(changes[i].from, changes[i].to);
        ms_graph *graph = NULL;
        assert_ms_fails(ms_graph_parse(text, &graph, &err), changes[i].code, err, changes[i].error);
        assert_null(graph);
        free(text);
    }
}

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

static void malformed_documents_are_refused_with_the_place(void **state)
{
    (void)state;
    static const change changes[] = {
        {"\"version\":1", "\"version\":2", MS_EVERSION, "$.version"},
        {"\"version\":1,", "", MS_EFORMAT, "$.version"},
        {"\"model\":\"Toy\",", "", MS_EFORMAT, "$.model"},
        {"\"model\":\"Toy\",", "\"model\":\"Toy\",\"extra\":0,", MS_EFORMAT, "extra"},
        {"\"source\":\"static\"", "\"source\":\"guess\"", MS_EFORMAT, "$.source"},
        {"\"residents\":{", "\"residents\":{\"x\":1,", MS_EFORMAT, "$.residents"},
        {"\"buffer_bytes\":12", "\"buffer_bytes\":-1", MS_EFORMAT, "$.residents.buffer_bytes"},
        {"\"buffer_bytes\":12", "\"buffer_bytes\":1.5", MS_EFORMAT, "$.residents.buffer_bytes"},
        {"\"outputs_held\":true", "\"outputs_held\":1", MS_EFORMAT, "$.loop.outputs_held"},
        {"\"loop\":{", "\"loop\":{\"x\":1,", MS_EFORMAT, "$.loop"},
        {"\"external_loss_bytes\":7", "\"external_loss_bytes\":null", MS_EFORMAT, "external_loss_bytes"},
        {"\"role\":\"batch\"", "\"role\":\"bath\"", MS_EFORMAT, "$.storages[0].role"},
        {"{\"bytes\":16,\"role\":\"batch\"", "{\"x\":1,\"bytes\":16,\"role\":\"batch\"", MS_EFORMAT, "$.storages[0]"},
        {"\"first_node\":1", "\"first_node\":4294967296", MS_EFORMAT, "$.storages[0].first_node"},
        {"\"storage_bytes\":[64,64,40]", "\"storage_bytes\":[64,\"64\",40]", MS_EFORMAT,
         "$.profiles[0].storage_bytes[1]"},
        {"\"external_count\":3", "\"external_count\":4", MS_EFORMAT, "$.profiles[0].external_count"},
        {"\"inputs\":[]", "\"inputs\":{}", MS_EFORMAT, "$.profiles[0].inputs"},
        {"{\"storage_bytes\":[64,64,40]", "{\"x\":1,\"storage_bytes\":[64,64,40]", MS_EFORMAT, "$.profiles[0]"},
        {"[\"alloc\",0]", "[\"alloc\"]", MS_EFORMAT, "$.profiles[0].forward[0]"},
        {"[\"alloc\",0]", "[\"alloc\",0,0]", MS_EFORMAT, "$.profiles[0].forward[0]"},
        {"[\"alloc\",0]", "[\"aloc\",0]", MS_EFORMAT, "$.profiles[0].forward[0]"},
        {"[\"alloc\",0]", "[]", MS_EFORMAT, "$.profiles[0].forward[0]"},
        {"[\"alloc\",0]", "[\"alloc\",4294967296]", MS_EFORMAT, "$.profiles[0].forward[0][1]"},
        {"[\"alloc\",0]", "7", MS_EFORMAT, "$.profiles[0].forward[0]"},
        {"[\"work\",4096,200]", "[\"work\",4096]", MS_EFORMAT, "$.profiles[1].forward[1]"},
        {"[\"work\",4096,200]", "[\"work\",4096,200,1,1,1,1,1]", MS_EFORMAT, "$.profiles[1].forward[1]"},
        {"[\"work\",4096,200]", "[\"work\",4096,200,1,1,3]", MS_EFORMAT, "$.profiles[1].forward[1][5]"},
        {"[\"work\",4096,200]", "[\"work\",4096,200,-1]", MS_EFORMAT, "$.profiles[1].forward[1][3]"},
        {"[\"work\",4096,200]", "[\"work\",-1,200]", MS_EFORMAT, "$.profiles[1].forward[1][1]"},
        {"\"kind\":\"root\"", "\"kind\":\"leaf\"", MS_EFORMAT, "$.nodes[0].kind"},
        {"\"flags\":[\"chained\"", "\"flags\":[\"uses_rng\"", MS_EFORMAT, "$.nodes[1].flags"},
        {"\"flags\":[\"chained\"", "\"flags\":[\"chain\"", MS_EFORMAT, "$.nodes[1].flags"},
        {"\"profile\":2", "\"profile\":3", MS_EFORMAT, "$.nodes[3]"},
        {"\"externals\":[3,4]", "\"externals\":[3]", MS_EFORMAT, "$.nodes[3]"},
        {"\"name\":\"h\"", "\"nam\":\"h\"", MS_EFORMAT, "$.nodes[1]"},
    };
    assert_refused(changes, COUNT_OF(changes));
}

static void graphs_that_contradict_themselves_are_refused(void **state)
{
    (void)state;
    static const change changes[] = {
        /* nodes and bindings */
        {"{\"name\":\"\",\"kind\":\"root\",\"call\":0", "{\"name\":\"x\",\"kind\":\"root\",\"call\":0", MS_EFORMAT,
         "$.nodes[0]"},
        {"\"name\":\"h\",\"kind\":\"layer\",\"call\":0", "\"name\":\"\",\"kind\":\"layer\",\"call\":0", MS_EFORMAT,
         "$.nodes[1]"},
        {"\"call\":1,\"flags\":[],\"profile\":1", "\"call\":0,\"flags\":[],\"profile\":1", MS_EFORMAT,
         "$.nodes[2].call"},
        {"\"call\":1,\"flags\":[],\"profile\":2", "\"call\":0,\"flags\":[],\"profile\":2", MS_EFORMAT,
         "$.nodes[3].call"},
        {"\"externals\":[3,4]", "\"externals\":[3,8]", MS_EFORMAT, "there is no storage 8"},
        {"\"externals\":[3,4]", "\"externals\":[3,3]", MS_EFORMAT, "bound twice"},
        {"{\"bytes\":16,", "{\"bytes\":17,", MS_EFORMAT, "17 bytes"},
        {"\"inputs\":[0,1]", "\"inputs\":[0,5]", MS_EFORMAT, "not an external"},
        {"\"inputs\":[0,1]", "\"inputs\":[0,0]", MS_EFORMAT, "listed twice"},
        {"\"profile\":2,\"externals\":[3,4]", "\"profile\":0,\"externals\":[3,4,7]", MS_EFORMAT,
         "$.profiles[2]: no node uses it"},
        /* events of locals */
        {"[\"alloc\",5],", "", MS_EFORMAT, "before its alloc"},
        {"[\"alloc\",5],", "[\"alloc\",5],[\"alloc\",5],", MS_EFORMAT, "after another event"},
        {"[\"save\",5],[\"free\",5]", "[\"free\",5],[\"save\",5]", MS_EFORMAT, "after its free"},
        {"[\"save\",5],", "[\"save\",5],[\"save\",5],", MS_EFORMAT, "a second time"},
        {"[\"save\",5],", "", MS_EFORMAT, "without a save"},
        {"[\"free\",5],", "[\"free\",5],[\"free\",5],", MS_EFORMAT, "a second time"},
        {"[\"save\",0],", "", MS_EFORMAT, "without a save"},
        {"[\"save\",0],", "[\"save\",0],[\"need\",0],", MS_EFORMAT, "in forward"},
        {"[\"need\",0],", "[\"need\",0],[\"need\",0],", MS_EFORMAT, "a second time"},
        {"[\"need\",0],", "[\"drop\",0],[\"need\",0],", MS_EFORMAT, "after its drop"},
        {"[\"drop\",0],", "[\"drop\",0],[\"drop\",0],", MS_EFORMAT, "a second time"},
        {"[\"drop\",0],", "[\"drop\",0],[\"save\",2],", MS_EFORMAT, "in backward"},
        {"[\"drop\",0],", "[\"drop\",6],", MS_EFORMAT, "no such storage"},
        {"[\"need\",0],", "[\"need\",0],[\"final\",5],", MS_EFORMAT, "of a local storage"},
        {"[\"save\",0],", "[\"save\",0],[\"final\",0],", MS_EFORMAT, "in forward"},
        {"[\"drop\",0],", "[\"drop\",0],[\"final\",0],[\"final\",0],", MS_EFORMAT, "a second time"},
        {"[64,16,64,64,64,8]", "[64,16,64,64,64,8,9]", MS_EFORMAT, "never allocated"},
        /* events over the step */
        {"[[\"alloc\",0]],\"backward\":[[\"alloc\",2],[\"free\",1]]", "[],\"backward\":[[\"alloc\",2],[\"free\",1]]",
         MS_EFORMAT, "before its alloc"},
        {"[[\"alloc\",0]],\"backward\"", "[[\"alloc\",0],[\"free\",0]],\"backward\"", MS_EFORMAT, "it after its free"},
        {"[\"alloc\",2],[\"free\",1]", "[\"alloc\",2],[\"free\",1],[\"free\",2]", MS_EFORMAT, "gradient"},
        {"[\"alloc\",4],", "", MS_EFORMAT, "before its alloc"},
        {"[\"alloc\",2],[\"save\",0]", "[\"alloc\",2],[\"save\",1],[\"save\",0]", MS_EFORMAT, "of the batch"},
        {"\"backward\":[[\"alloc\",1]]", "\"backward\":[[\"alloc\",1],[\"free\",0]]", MS_EFORMAT, "a second time"},
        {"\"first_node\":0,\"last_node\":1", "\"first_node\":0,\"last_node\":2", MS_EFORMAT, "$.storages[1]"},
        {"\"first_node\":3,\"last_node\":2", "\"first_node\":2,\"last_node\":3", MS_EFORMAT, "$.storages[4]"},
        {"\"role\":\"gradient\",\"first_node\":0,\"last_node\":0}",
         "\"role\":\"gradient\",\"first_node\":0,\"last_node\":0},{\"bytes\":1,\"role\":\"activation\",\"first_node\":"
         "0,\"last_node\":0}",
         MS_EFORMAT, "no node touches it"},
        /* sizes */
        {"\"trainable_bytes\":60", "\"trainable_bytes\":101", MS_EFORMAT, "$.residents"},
        {"\"largest_parameter_bytes\":40", "\"largest_parameter_bytes\":101", MS_EFORMAT, "$.residents"},
        {"\"external_loss_bytes\":7", "\"external_loss_bytes\":9223372036854775807", MS_EFORMAT, "bytes of the step"},
        {"64,64,64,8]", "64,64,64,9223372036854775807]", MS_EFORMAT, "bytes of the step"},
        {"[\"work\",4096,200]", "[\"work\",9223372036854775807,200]", MS_EFORMAT, "operations of the step"},
    };
    assert_refused(changes, COUNT_OF(changes));
}

static void a_profile_that_nothing_uses_is_refused(void **state)
{
    (void)state;
    static const change changes[] = {
        {"{\"storage_bytes\":[64,64],\"external_count\":2,",
         "{\"storage_bytes\":[],\"external_count\":0,\"inputs\":[],\"forward\":[],\"backward\":[]},"
         "{\"storage_bytes\":[64,64],\"external_count\":2,",
         MS_EFORMAT, "externals"},
    };
    assert_refused(changes, COUNT_OF(changes));
    ms_graph *graph = parse_sound();
    ms_profile *profiles = ms_calloc(4, sizeof *profiles);
    assert_non_null(profiles);
    memcpy(profiles, graph->profiles, 3 * sizeof *profiles);
    ms_profile *kept = graph->profiles;
    graph->profiles = profiles;
    graph->profile_count = 4;
    assert_ms_fails(ms_graph_check(graph, &err), MS_EFORMAT, err, "$.profiles[3]: no node uses it");
    graph->profiles = kept;
    graph->profile_count = 3;
    ms_free(profiles);
    ms_graph_free(graph);
}

/* Faults that only graphs built in memory can have: the reader refuses such documents earlier. */
static void built_graphs_are_checked_too(void **state)
{
    (void)state;
    ms_graph *graph = parse_sound();
    assert_ms_ok(ms_graph_check(graph, &err), err);
    graph->profiles[1].forward[0].kind = MS_EVENT_COUNT;
    assert_ms_fails(ms_graph_check(graph, &err), MS_EFORMAT, err, "unknown event kind");
    graph->profiles[1].forward[0].kind = MS_EVENT_ALLOC;
    graph->storages[0].role = MS_STORAGE_ROLE_COUNT;
    assert_ms_fails(ms_graph_check(graph, &err), MS_EFORMAT, err, "unknown role");
    graph->storages[0].role = MS_STORAGE_BATCH;
    graph->nodes[0].flags = 1u << 31;
    assert_ms_fails(ms_graph_check(graph, &err), MS_EFORMAT, err, "$.nodes[0]");
    graph->nodes[0].flags = 0;
    graph->profiles[1].forward[1].bytes = UINT64_MAX;
    assert_ms_fails(ms_graph_check(graph, &err), MS_EFORMAT, err, "too large");
    graph->profiles[1].forward[1].bytes = 200;
    graph->profiles[0].external_count = 4;
    assert_ms_fails(ms_graph_check(graph, &err), MS_EFORMAT, err, "4 externals among 3");
    graph->profiles[0].external_count = 3;
    char *model = graph->model;
    graph->model = NULL;
    assert_ms_fails(ms_graph_check(graph, &err), MS_EFORMAT, err, "model");
    graph->model = model;
    assert_ms_ok(ms_graph_check(graph, NULL), err);
    ms_graph_free(graph);
}

static void a_document_cut_off_anywhere_is_refused(void **state)
{
    (void)state;
    char *text = malloc(sizeof sound);
    assert_non_null(text);
    uint64_t blocks = ms_memory_live_blocks();
    for (size_t length = 0; length + 1 < sizeof sound; length++) {
        memcpy(text, sound, length);
        text[length] = '\0';
        ms_graph *graph = NULL;
        assert_int_equal(ms_graph_parse(text, &graph, NULL), MS_EFORMAT);
        assert_null(graph);
    }
    assert_int_equal(ms_memory_live_blocks(), blocks);
    free(text);
}

/* ---- memory ------------------------------------------------------------------- */

static int read_copy_write(void)
{
    ms_graph *graph = NULL;
    ms_graph *copy = NULL;
    char *text = NULL;
    int rc = ms_graph_parse(sound, &graph, &err);
    if (rc == MS_OK) {
        copy = ms_graph_copy(graph, &err);
        rc = copy != NULL ? MS_OK : MS_ENOMEM;
    }
    if (rc == MS_OK) {
        text = ms_graph_to_json(copy);
        rc = text != NULL ? MS_OK : MS_ENOMEM;
    }
    ms_free(text);
    ms_graph_free(copy);
    ms_graph_free(graph);
    return rc;
}

/* The number of allocations of the JSON parser, which come first. The test skips them, because jansson's lexer doesn't
 * survive a failed allocation in a long text. */
static uint64_t parser_allocations(void)
{
    json_t *tree;
    ms__json_at root;
    ms_fault_arm(MS_FAULT_ALLOC, UINT64_MAX, ENOMEM);
    assert_ms_ok(ms__json_parse(sound, sizeof sound - 1, "graph", &tree, &root, &err), err);
    json_decref(tree);
    return ms_fault_passed(MS_FAULT_ALLOC);
}

static void memory_running_out_anywhere_leaves_nothing_behind(void **state)
{
    (void)state;
    assert_int_equal(read_copy_write(), MS_OK);
    uint64_t blocks = ms_memory_live_blocks();
    uint64_t nth = parser_allocations() + 1;
    unsigned failures = 0;
    for (bool fired = true; fired; nth++) {
        ms_fault_arm(MS_FAULT_ALLOC, nth, ENOMEM);
        int rc = read_copy_write();
        fired = ms_fault_passed(MS_FAULT_ALLOC) >= nth;
        ms_fault_disarm_all();
        failures += rc != MS_OK;
        assert_true(rc == MS_OK || (fired && rc == MS_ENOMEM));
        assert_int_equal(ms_memory_live_blocks(), blocks);
    }
    assert_true(failures > 200);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, disarm)

static void an_observed_loop_is_adopted(void **state)
{
    (void)state;
    ms_graph *graph = parse_sound(), *other = parse_sound();
    graph->loop = (ms_loop){.optimizer_state_bytes = 1, .external_loss_bytes = 2};
    other->loop = (ms_loop){.outputs_held = true, .optimizer_state_bytes = 30, .external_loss_bytes = 40};
    ms_graph_adopt_loop(graph, other);
    assert_false(graph->loop.outputs_held);
    assert_int_equal(graph->loop.optimizer_state_bytes, 1);
    other->loop.observed = true;
    ms_graph_pend(other, 2);
    ms_graph_pend(other, 1); /* never lowers it */
    ms_graph_adopt_loop(graph, other);
    assert_int_equal(graph->loop.pending_forwards, 2);
    assert_true(graph->loop.observed && graph->loop.outputs_held && !graph->loop.gradients_live_in_forward);
    assert_int_equal(graph->loop.optimizer_state_bytes, 30);
    assert_int_equal(graph->loop.external_loss_bytes, 2);
    ms_graph_free(graph);
    ms_graph_free(other);
}

static void every_call_of_a_layer_is_held(void **state)
{
    (void)state;
    ms_graph *graph = parse_sound();
    ms_graph_hold(graph, "");
    ms_graph_hold(graph, "no such layer");
    for (uint32_t i = 0; i < graph->node_count; i++) {
        assert_false(graph->nodes[i].flags & MS_NODE_NOT_REPEATABLE);
    }
    ms_graph_hold(graph, "h");
    for (uint32_t i = 0; i < graph->node_count; i++) {
        bool is_h = strcmp(graph->nodes[i].name, "h") == 0;
        assert_int_equal((graph->nodes[i].flags & MS_NODE_NOT_REPEATABLE) != 0, is_h);
    }
    ms_graph_free(graph);
}

static void graphs_are_the_same_step_whatever_their_signatures_and_loops(void **state)
{
    (void)state;
    ms_graph *graph = parse_sound(), *other = parse_sound();
    other->signature[0] = 'y';
    other->loop.optimizer_state_bytes = 1;
    assert_true(ms_graph_same_step(graph, other));
    other->storages[1].bytes++;
    assert_false(ms_graph_same_step(graph, other));
    other->storages[1].bytes--;
    ms_fault_arm(MS_FAULT_ALLOC, 1, ENOMEM);
    assert_false(ms_graph_same_step(graph, other));
    ms_fault_disarm_all();
    ms_graph_free(graph);
    ms_graph_free(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_observed_loop_is_adopted),
        cmocka_unit_test(every_call_of_a_layer_is_held),
        TEST(graphs_are_the_same_step_whatever_their_signatures_and_loops),
        TEST(a_document_is_read_and_written_byte_for_byte),
        TEST(every_member_is_read_into_its_field),
        TEST(spaces_and_order_of_members_do_not_matter),
        TEST(a_copy_is_equal_and_independent),
        TEST(malformed_documents_are_refused_with_the_place),
        TEST(graphs_that_contradict_themselves_are_refused),
        TEST(a_profile_that_nothing_uses_is_refused),
        TEST(built_graphs_are_checked_too),
        TEST(a_document_cut_off_anywhere_is_refused),
        TEST(memory_running_out_anywhere_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
