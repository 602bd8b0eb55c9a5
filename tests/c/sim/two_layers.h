/* The step of test_simulate.c and test_loop.c: its graph, its replay, and who owns its bytes. */
#ifndef TWO_LAYERS_H
#define TWO_LAYERS_H

#include "plan_fixture.h"

/* What torch holds before the model: ms__device_kind.runtime_bytes of the two kinds. */
#define RUNTIME_BYTES UINT64_C(430000000)
#define GPU_RUNTIME_BYTES UINT64_C(8519680)

enum { LAYERS = 2, NODES = LAYERS + 2, LOSS_BYTES = 4 };

static const fixture_layer layer = {8 * MIB, 4 * MIB, 1000000, MIB, 0};

static inline ms_graph *two_layers(void)
{
    fixture_chain chain = {.layer_count = LAYERS,
                           .layers = &layer,
                           .uniform = true,
                           .activation_bytes = 2 * MIB,
                           .logits_bytes = 16 * MIB};
    return fixture_chain_graph(&chain);
}

static inline ms_replay replay(const ms_graph *graph, const ms_hardware *hardware, const uint8_t *techniques,
                               uint64_t window, uint64_t ceiling, ms_sample *samples)
{
    ms_choices choices = {.technique = techniques,
                          .offload_min_bytes = MIB,
                          .write_window_bytes = window,
                          .read_window_bytes = 2 * window,
                          .ceiling_bytes = ceiling};
    ms_replay result;
    ms_error err;
    assert_ms_ok(ms_simulate(graph, hardware, &choices, &result, samples, &err), err);
    return result;
}

/* The owners' bytes sum to the device's at every sample. Returns those of an owner at one sample. */
static inline uint64_t owned(const ms_sample *samples, uint32_t at, ms_owner owner)
{
    for (uint32_t i = 0; i < 2 * NODES; i++) {
        uint64_t sum = 0;
        for (int k = 0; k < MS_OWNER_COUNT; k++) {
            sum += samples[i].owner_bytes[k];
        }
        assert_int_equal(sum, samples[i].device_bytes);
    }
    return samples[at].owner_bytes[owner];
}

#endif
