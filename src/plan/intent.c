/*
 * The line that wrap() logs before shapes are known: the machine, the budget, and what may be done. Called by the
 * extension; decides nothing.
 */
#include "base/units.h"
#include "plan/plan_internal.h"

static void add_budget(ms__text *text, const ms_hardware *hardware, const ms_config *config)
{
    ms_pressure pressure;
    ms_pressure_of(0, hardware, config, &pressure);
    ms__text_add(text, "; %s %s", pressure.budget_given ? "budget" : "target",
                 ms__text_bytes(pressure.allowed_bytes).text);
    if (pressure.budget_given && pressure.allowed_bytes > ms_hardware_device_bytes(hardware)) {
        ms__text_add(text, ", more than there is"); /* megabytes, taken for gigabytes? */
    }
    if (config->force_optimize) {
        ms__text_add(text, ", forced to the smallest peak");
    }
}

static void intent_add_techniques(ms__text *text, const ms_config *config)
{
    const struct {
        bool may;
        const char *name;
    } list[] = {
        {config->enable_checkpointing, "recompute"},
        {config->enable_offloading && config->mode != MS_MODE_CONSERVATIVE, "offload"},
        {config->enable_tiling, "tiles"},
        {config->use_mixed_precision, "mixed precision"},
        {config->use_8bit_optimizer, "8-bit optimizer state"},
    };
    bool any = false;
    ms__text_add(text, "; mode %s: ", ms_mode_name(config->mode));
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        if (list[i].may) {
            ms__text_add(text, "%s%s", any ? ", " : "", list[i].name);
            any = true;
        }
    }
    ms__text_add(text, any ? " where needed" : "nothing is allowed");
}

char *ms_plan_intent(const ms_hardware *hardware, const ms_config *config, const char *model, uint64_t parameter_bytes)
{
    ms__text text = {0};
    ms__text_add(&text, "%s, %s of parameters, on ", model, ms__text_bytes(parameter_bytes).text);
    ms__plan_add_machine(&text, hardware);
    add_budget(&text, hardware, config);
    intent_add_techniques(&text, config);
    ms__text_add(&text, "; the plan follows at the first training forward");
    return ms__text_take(&text);
}
