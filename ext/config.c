/*
 * The configuration for Python: `Config` sends its JSON here and gets it back checked and complete.
 * Used by memscale.config.
 */
#include "memscale/config.h"
#include "common.h"
#include "rooms.h"

static PyObject *config_text(const ms_config *config)
{
    return ms_ext_take_text(ms_config_to_json(config));
}

static PyObject *config_validate(PyObject *module, PyObject *text)
{
    (void)module;
    ms_config config;
    ms_error err;
    const char *json = ms_ext_utf8(text, "config", NULL);
    if (json == NULL || ms_ext_check(ms_config_parse(json, &config, &err), &err) != 0) {
        return NULL;
    }
    return config_text(&config);
}

static PyObject *config_defaults(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    ms_config config;
    ms_config_default(&config);
    return config_text(&config);
}

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION("config_validate", config_validate, METH_O, "json, /", "(str) -> str",
                    "The config with every field written out. Raises ConfigError."),
    MS_EXT_FUNCTION("config_defaults", config_defaults, METH_NOARGS, "/", "() -> str", "JSON of the default config."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_config(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
