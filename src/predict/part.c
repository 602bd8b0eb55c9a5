/*
 * One rank's part of a model: what torch's tensor parallelism and its pipeline leave of each size. Refuses by name what
 * they do not divide.
 */
#include <inttypes.h>

#include "predict/models.h"

static bool is_whole(const ms_part *part)
{
    return part->tensor_ranks == 1 && part->stages == 1 && !part->is_half;
}

static int check_part(const ms_part *part, ms_error *err)
{
    if (part->tensor_ranks == 0 || part->stages == 0 || part->microbatches == 0 || part->stage >= part->stages) {
        return ms_fail(err, MS_EINVAL, "part: stage %u of %u, %u microbatches, %u tensor ranks: no such part",
                       part->stage, part->stages, part->microbatches, part->tensor_ranks);
    }
    return MS_OK;
}

static int check_stages(const ms__model *m, const ms_part *part, ms_error *err)
{
    if (part->stages > m->layers) {
        return ms_fail(err, MS_ENOTSUP, "%u stages: the model has %" PRIu64 " layers", part->stages, m->layers);
    }
    if (part->microbatches < part->stages) {
        return ms_fail(err, MS_ENOTSUP, "%u stages: Schedule1F1B wants at least as many microbatches, not %u",
                       part->stages, part->microbatches);
    }
    if (part->stages > 1 && m->tied) {
        return ms_fail(
            err, MS_ENOTSUP,
            "%u stages: the model's head is its embedding (tie_word_embeddings), but the first stage has the "
            "embedding and the last one the head",
            part->stages);
    }
    return MS_OK;
}

static int check_shares(const ms__model *m, const ms_part *part, ms_error *err)
{
    const struct {
        const char *name;
        uint64_t size;
    } divided[] = {{"heads", m->heads},
                   {"key heads", m->key_heads},
                   {"columns of the MLP", m->inner},
                   {"tokens (--sp)", part->by_sequence ? m->seq : 0}};
    for (size_t i = 0; i < sizeof divided / sizeof divided[0]; i++) {
        if (divided[i].size % part->tensor_ranks != 0) {
            return ms_fail(err, MS_ENOTSUP, "%u tensor ranks: the model's %" PRIu64 " %s can't be divided among them",
                           part->tensor_ranks, divided[i].size, divided[i].name);
        }
    }
    if (part->tensor_ranks > 1 && m->tied) {
        return ms_fail(err, MS_ENOTSUP,
                       "%u tensor ranks: the model's head is its embedding (tie_word_embeddings), but torch's "
                       "parallelize_module() gives each a parameter of its own",
                       part->tensor_ranks);
    }
    return MS_OK;
}

/* As torchtitan splits a model: the first stage has the least, odd layers go to the stages after it, one each, and the
 * last stage takes the rest. */
static uint64_t first_layer_of(const ms__model *m, const ms_part *part, uint64_t stage)
{
    uint64_t least = m->layers / part->stages, odd = m->layers % part->stages;
    uint64_t with_more = stage == 0 ? 0 : stage - 1;
    return stage == part->stages ? m->layers : stage * least + (with_more < odd ? with_more : odd);
}

int ms__divide_model(ms__model *m, const ms_part *part, ms_error *err)
{
    int rc = check_part(part, err);
    if (rc != MS_OK) {
        return rc;
    }
    if (!is_whole(part) && (m->family == MS__GPT2 || m->family == MS__BERT)) {
        return ms_fail(err, MS_ENOTSUP,
                       "model_type: gpt2 and bert are not divided among ranks and have no BF16 form; llama, mistral, "
                       "qwen2 and qwen3 are");
    }
    rc = check_shares(m, part, err);
    if (rc == MS_OK) {
        rc = check_stages(m, part, err);
    }
    if (rc != MS_OK) {
        return rc;
    }
    m->shares = part->tensor_ranks;
    m->by_sequence = part->by_sequence && m->shares > 1;
    m->heads /= m->shares;
    m->key_heads /= m->shares;
    m->inner /= m->shares;
    m->words = (m->vocabulary + m->shares - 1) / m->shares; /* the first ranks have one more than the last */
    m->first_layer = first_layer_of(m, part, part->stage);
    m->end_layer = first_layer_of(m, part, part->stage + 1);
    m->microbatches = part->microbatches;
    return MS_OK;
}
