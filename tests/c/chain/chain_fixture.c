/* The chains and judges of chain_fixture.h. */
#include "chain_fixture.h"

/* ---- chains --------------------------------------------------------------------------- */

uint64_t chain_random(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

uint64_t chain_between(uint64_t *state, uint64_t least, uint64_t most)
{
    return least + chain_random(state) % (most - least + 1);
}

static void fill(ms_chain_layer *layer, const chain_recipe *recipe, uint64_t input_bytes, uint64_t *state)
{
    uint64_t size = recipe->size_most;
    uint64_t output = chain_between(state, 0, size), tmp = chain_between(state, 0, 1) * chain_between(state, 0, size);
    layer->output_bytes = output * recipe->unit;
    layer->fwd_tmp_bytes = tmp * recipe->unit;
    layer->fwd_ns = chain_between(state, 0, recipe->time_most);
    layer->option_count = (uint32_t)chain_between(state, 1, recipe->options);
    layer->options = ms_calloc(layer->option_count, sizeof *layer->options);
    for (uint32_t k = 0; k < layer->option_count; k++) {
        uint64_t saved = output + chain_between(state, 0, 3 * size), option_tmp = chain_between(state, 0, size);
        if (!recipe->any_transients && saved + option_tmp < output + tmp) {
            option_tmp = output + tmp - saved;
        }
        layer->options[k] = (ms_chain_option){
            .saved_bytes = saved * recipe->unit,
            .fwd_ns = layer->fwd_ns + chain_between(state, 0, 3),
            .bwd_ns = chain_between(state, 0, 2 * recipe->time_most),
            .fwd_tmp_bytes = option_tmp * recipe->unit,
            .bwd_tmp_bytes = input_bytes + chain_between(state, 0, size) * recipe->unit,
        };
    }
}

ms_chain *chain_make(const chain_recipe *recipe, uint64_t seed)
{
    uint64_t state = seed;
    ms_chain *chain = ms_calloc(1, sizeof *chain);
    chain->input_bytes = chain_between(&state, 0, recipe->size_most) * recipe->unit;
    chain->layer_count = recipe->layers;
    chain->layers = ms_calloc(recipe->layers, sizeof *chain->layers);
    for (uint32_t i = 0; i < recipe->layers; i++) {
        uint64_t own = seed + 1000 * (1 + (recipe->types > 0 ? i % recipe->types : i));
        uint64_t input_bytes = i > 0 && recipe->types == 0 ? chain->layers[i - 1].output_bytes : 0;
        fill(&chain->layers[i], recipe, input_bytes, &own);
    }
    return chain;
}

ms_chain *chain_with_option(const ms_chain *chain, uint32_t i, const ms_chain_option *option)
{
    ms_chain *copy = ms_calloc(1, sizeof *copy);
    *copy = *chain;
    copy->layers = ms_calloc(chain->layer_count, sizeof *copy->layers);
    for (uint32_t n = 0; n < chain->layer_count; n++) {
        ms_chain_layer *layer = &copy->layers[n];
        *layer = chain->layers[n];
        layer->options = ms_calloc(layer->option_count + 1, sizeof *layer->options);
        memcpy(layer->options, chain->layers[n].options, layer->option_count * sizeof *layer->options);
    }
    copy->layers[i].options[copy->layers[i].option_count++] = *option;
    return copy;
}

static uint64_t size_of(const ms_chain *chain, uint32_t i)
{
    return i == 0 ? chain->input_bytes : chain->layers[i - 1].output_bytes;
}

/* ---- the replay -------------------------------------------------------------------------- */

/* By sets: which activations and gradients exist, which layer is saved and how. */
typedef struct scene {
    const ms_chain *chain;
    bool *activation, *gradient;
    int32_t *saved; /* -1, or an option */
} scene;

static uint64_t bytes_of(const scene *now)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i <= now->chain->layer_count; i++) {
        sum += now->activation[i] ? size_of(now->chain, i) : 0;
        sum += now->gradient[i] ? size_of(now->chain, i) : 0;
        if (i < now->chain->layer_count && now->saved[i] >= 0) {
            sum += now->chain->layers[i].options[now->saved[i]].saved_bytes;
        }
    }
    return sum;
}

/* Changes the scene; gives what the operation takes beside what is there. */
static uint64_t act(scene *now, const ms_chain_op *op, uint64_t *ns)
{
    const ms_chain_layer *layer = &now->chain->layers[op->layer];
    uint32_t i = op->layer;
    assert_true(now->activation[i] || (i > 0 && now->saved[i - 1] >= 0));
    if (op->kind == MS_CHAIN_BWD) {
        assert_int_equal(now->saved[i], op->option);
        assert_true(now->gradient[i + 1]);
        now->saved[i] = -1;
        now->gradient[i + 1] = now->activation[i] = false;
        now->gradient[i] = true;
        *ns += layer->options[op->option].bwd_ns;
        return layer->options[op->option].bwd_tmp_bytes;
    }
    assert_true(now->saved[i] < 0 && !now->activation[i + 1]);
    if (op->kind == MS_CHAIN_FWD_SAVE) {
        assert_true(op->option < layer->option_count);
        now->saved[i] = (int32_t)op->option;
        *ns += layer->options[op->option].fwd_ns;
        return layer->options[op->option].saved_bytes + layer->options[op->option].fwd_tmp_bytes;
    }
    now->activation[i + 1] = true;
    *ns += layer->fwd_ns;
    if (op->kind == MS_CHAIN_FWD_DROP) {
        assert_true(now->activation[i]);
        now->activation[i] = false;
    }
    return layer->output_bytes + layer->fwd_tmp_bytes;
}

void chain_check(const ms_chain *chain, const ms_chain_answer *answer, uint64_t budget_bytes)
{
    uint32_t count = chain->layer_count;
    scene now = {.chain = chain};
    now.activation = ms_calloc(count + 1, sizeof *now.activation);
    now.gradient = ms_calloc(count + 1, sizeof *now.gradient);
    now.saved = ms_malloc(count * sizeof *now.saved);
    memset(now.saved, 0xff, count * sizeof *now.saved);
    now.activation[0] = now.gradient[count] = true;
    uint64_t ns = 0, peak = bytes_of(&now);
    for (size_t n = 0; n < answer->op_count; n++) {
        uint64_t before = bytes_of(&now), more = act(&now, &answer->ops[n], &ns);
        peak = before + more > peak ? before + more : peak;
    }
    assert_true(now.gradient[0]);
    assert_int_equal(bytes_of(&now), chain->input_bytes);
    assert_int_equal(ns, answer->makespan_ns);
    assert_int_equal(peak, answer->peak_bytes);
    assert_true(peak <= budget_bytes);
    assert_true(answer->makespan_ns >= answer->lower_bound_ns);
    ms_free(now.activation);
    ms_free(now.gradient);
    ms_free(now.saved);
}

void chain_solve(const ms_chain *chain, uint64_t budget_bytes, uint32_t threads, ms_chain_answer *answer)
{
    ms_error err;
    assert_ms_ok(ms_chain_solve(chain, budget_bytes, threads, answer, &err), err);
    if (answer->feasible) {
        chain_check(chain, answer, budget_bytes);
        assert_true(answer->smallest_budget_bytes <= budget_bytes);
    } else {
        assert_true(answer->smallest_budget_bytes > budget_bytes);
    }
}

/* ---- the recurrence ------------------------------------------------------------------------ */

static uint64_t max_of(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t sum_of(uint64_t a, uint64_t b)
{
    return a == UINT64_MAX || b == UINT64_MAX ? UINT64_MAX : a + b;
}

static uint64_t recur(const ms_chain *chain, uint32_t s, uint32_t t, uint64_t m)
{
    const ms_chain_layer *layer = &chain->layers[s];
    uint64_t best = UINT64_MAX, passes = 0, none = size_of(chain, s + 1) + layer->fwd_tmp_bytes;
    for (uint32_t k = 0; k < layer->option_count; k++) {
        const ms_chain_option *o = &layer->options[k];
        uint64_t all = max_of(size_of(chain, t + 1) + o->saved_bytes + o->fwd_tmp_bytes,
                              size_of(chain, s + 1) + o->saved_bytes + o->bwd_tmp_bytes);
        if (all <= m && o->saved_bytes <= m) {
            uint64_t rest = s < t ? recur(chain, s + 1, t, m - o->saved_bytes) : 0;
            uint64_t time = sum_of(o->fwd_ns + o->bwd_ns, rest);
            best = time < best ? time : best;
        }
    }
    for (uint32_t j = s + 1; j < t; j++) {
        none = max_of(none, size_of(chain, j) + size_of(chain, j + 1) + chain->layers[j].fwd_tmp_bytes);
    }
    for (uint32_t j = s + 1; j <= t && none + size_of(chain, t + 1) <= m; j++) {
        passes += chain->layers[j - 1].fwd_ns;
        if (size_of(chain, j) <= m) {
            uint64_t time = sum_of(recur(chain, j, t, m - size_of(chain, j)), recur(chain, s, j - 1, m));
            time = sum_of(time, passes);
            best = time < best ? time : best;
        }
    }
    return best;
}

uint64_t chain_recurrence(const ms_chain *chain, uint64_t budget_bytes)
{
    return budget_bytes < chain->input_bytes
               ? UINT64_MAX
               : recur(chain, 0, chain->layer_count - 1, budget_bytes - chain->input_bytes);
}

/* ---- exhaustive search ------------------------------------------------------------------------ */

enum { SEARCH_LAYERS = 7, DIGITS = 5 };

/* held[i]: 0 nothing, 1 x_i is kept on its own, 2 + k layer i is saved with option k (x_i
 * is kept too, alone or in what layer i - 1 saved). `head`: x_head was just made and only
 * the next operation may use it; 0: none. `left`: layers without their backward. */
typedef struct state {
    uint8_t held[SEARCH_LAYERS], head, left;
} state;

typedef struct search {
    const ms_chain *chain;
    uint64_t budget_bytes;
    uint64_t *known; /* by state; 0: not yet */
} search;

static size_t index_of(const search *in, const state *at)
{
    size_t index = 0;
    for (uint32_t i = 0; i < in->chain->layer_count; i++) {
        index = index * DIGITS + at->held[i];
    }
    return (index * (SEARCH_LAYERS + 1) + at->head) * (SEARCH_LAYERS + 1) + at->left;
}

static uint64_t held_bytes(const search *in, const state *at)
{
    uint64_t sum = size_of(in->chain, at->left) + (at->head > 0 ? size_of(in->chain, at->head) : 0);
    for (uint32_t i = 0; i < in->chain->layer_count; i++) {
        bool within = i > 0 && at->held[i - 1] >= 2;
        sum += at->held[i] > 0 && !within ? size_of(in->chain, i) : 0;
        sum += at->held[i] >= 2 ? in->chain->layers[i].options[at->held[i] - 2].saved_bytes : 0;
    }
    return sum;
}

static uint64_t explore(search *in, const state *at);

/* The least time after an operation that takes `more` bytes for its while. */
static uint64_t after(search *in, const state *at, uint64_t more, const state *next, uint64_t ns)
{
    return held_bytes(in, at) + more > in->budget_bytes ? UINT64_MAX : sum_of(ns, explore(in, next));
}

static uint64_t forwards(search *in, const state *at, uint32_t i)
{
    const ms_chain_layer *layer = &in->chain->layers[i];
    uint64_t best = UINT64_MAX, time;
    for (uint32_t k = 0; k < layer->option_count; k++) {
        state next = *at;
        next.head = 0;
        next.held[i] = (uint8_t)(2 + k);
        const ms_chain_option *o = &layer->options[k];
        time = after(in, at, o->saved_bytes + o->fwd_tmp_bytes, &next, o->fwd_ns);
        best = time < best ? time : best;
    }
    if (i + 1u < at->left) {
        uint64_t more = layer->output_bytes + layer->fwd_tmp_bytes;
        state next = *at;
        next.head = (uint8_t)(i + 1);
        time = at->head > 0 ? after(in, at, more, &next, layer->fwd_ns) : UINT64_MAX;
        best = time < best ? time : best;
        next.held[i] = 1;
        time = after(in, at, more, &next, layer->fwd_ns);
        best = time < best ? time : best;
    }
    return best;
}

static uint64_t explore(search *in, const state *at)
{
    if (at->left == 0) {
        return 0;
    }
    uint64_t *known = &in->known[index_of(in, at)];
    if (*known != 0) {
        return *known == UINT64_MAX ? UINT64_MAX : *known - 1;
    }
    uint32_t last = at->left - 1u, start = at->left;
    uint64_t best;
    if (at->held[last] >= 2) {
        const ms_chain_option *o = &in->chain->layers[last].options[at->held[last] - 2];
        state next = *at;
        next.held[last] = 0;
        next.left--;
        best = after(in, at, o->bwd_tmp_bytes, &next, o->bwd_ns);
    } else if (at->head > 0) {
        best = forwards(in, at, at->head);
    } else {
        /* From the last input that is there. */
        while (start > 0 && at->held[start - 1] == 0) {
            start--;
        }
        uint32_t from = start == 0 ? 0 : at->held[start - 1] >= 2 ? start : start - 1;
        best = forwards(in, at, from);
    }
    *known = best == UINT64_MAX ? UINT64_MAX : best + 1;
    return best;
}

uint64_t chain_exhaustive(const ms_chain *chain, uint64_t budget_bytes)
{
    size_t states = (SEARCH_LAYERS + 1) * (SEARCH_LAYERS + 1);
    for (uint32_t i = 0; i < chain->layer_count; i++) {
        states *= DIGITS;
    }
    search in = {.chain = chain, .budget_bytes = budget_bytes, .known = ms_calloc(states, sizeof *in.known)};
    state start = {.held = {1}, .left = (uint8_t)chain->layer_count};
    uint64_t best = held_bytes(&in, &start) > budget_bytes ? UINT64_MAX : explore(&in, &start);
    ms_free(in.known);
    return best;
}

/* ---- Rotor's table -------------------------------------------------------------------------------- */

typedef struct rotor {
    const ms_chain *chain;
    uint64_t slot;
    uint32_t slots;
    uint64_t *times; /* [layers][layers][slots + 1] */
} rotor;

static uint64_t up(const rotor *in, uint64_t bytes)
{
    return (bytes + in->slot - 1) / in->slot;
}

static uint64_t *entry(const rotor *in, uint32_t s, uint32_t t)
{
    return in->times + ((size_t)s * in->chain->layer_count + t) * (in->slots + 1);
}

static uint64_t rotor_entry(const rotor *in, uint32_t s, uint32_t t, uint64_t m)
{
    const ms_chain *chain = in->chain;
    const ms_chain_option *o = &chain->layers[s].options[0];
    uint64_t best = UINT64_MAX, passes = 0,
             none = up(in, size_of(chain, s + 1)) + up(in, chain->layers[s].fwd_tmp_bytes);
    uint64_t saved = up(in, o->saved_bytes), gradient = up(in, size_of(chain, t + 1));
    uint64_t all = max_of(gradient + saved + up(in, o->fwd_tmp_bytes),
                          up(in, size_of(chain, s + 1)) + saved + up(in, o->bwd_tmp_bytes));
    if (all <= m) {
        best = sum_of(o->fwd_ns + o->bwd_ns, s < t ? entry(in, s + 1, t)[m - saved] : 0);
    }
    for (uint32_t j = s + 1; j < t; j++) {
        uint64_t pass =
            up(in, size_of(chain, j)) + up(in, size_of(chain, j + 1)) + up(in, chain->layers[j].fwd_tmp_bytes);
        none = max_of(none, pass);
    }
    for (uint32_t j = s + 1; j <= t && none + gradient <= m; j++) {
        uint64_t held = up(in, size_of(chain, j));
        passes += chain->layers[j - 1].fwd_ns;
        if (held <= m) {
            uint64_t time = sum_of(passes, sum_of(entry(in, j, t)[m - held], entry(in, s, j - 1)[m]));
            best = time < best ? time : best;
        }
    }
    return best;
}

uint64_t chain_rotor(const ms_chain *chain, uint64_t budget_bytes, uint32_t slots)
{
    uint32_t count = chain->layer_count;
    rotor in = {.chain = chain, .slot = (budget_bytes + slots - 1) / slots, .slots = slots};
    in.times = ms_calloc((size_t)count * count * (slots + 1), sizeof *in.times);
    for (uint32_t s = count; s-- > 0;) {
        for (uint32_t t = s; t < count; t++) {
            for (uint32_t m = 0; m <= slots; m++) {
                entry(&in, s, t)[m] = rotor_entry(&in, s, t, m);
            }
        }
    }
    uint64_t input = up(&in, chain->input_bytes);
    uint64_t best = input > slots ? UINT64_MAX : entry(&in, 0, count - 1)[budget_bytes / in.slot - input];
    ms_free(in.times);
    return best;
}
