"""A technique is one row of a table. A made-up row, added to a copy of the sources, is judged by the rules, replayed,
chosen, explained, written, read and drawn without any other change."""

import pathlib
import shutil
import subprocess
import sysconfig

from time_limits import HANG_SECONDS

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE_END = '    MS_SELECTIVE_ROWS(X, , "", STAYS,'
# A combination of columns that no technique has: joined, with its other arguments on a lower tier.
ROW = '    X(MADE_UP, "made_up", 1, NONE, 0, 0, 1, 1, "#123456", "a technique that only this test knows") \\\n'
PROGRAM = """
executable('made_up', 'made_up.c', dependencies: memscale_dep, include_directories: ms_includes)
"""
SOURCE = r"""
#include <stdio.h>
#include "base/os/file.h"
#include "memscale/pipeline.h"
#include "memscale/plan.h"

static char *text_of(const char *path)
{
    char *text = NULL;
    size_t length;
    ms_error err;
    return ms__file_read_text(path, 1 << 24, &text, &length, &err) == MS_OK ? text : NULL;
}

int main(int argc, char **argv)
{
    ms_graph *graph = NULL;
    static ms_hardware hardware;
    ms_plan *plan = NULL, *read = NULL;
    ms_config config;
    ms_error err = {0};
    (void)argc;
    if (ms_config_parse("{\"version\": 1, \"force_optimize\": true}", &config, &err) != MS_OK ||
        ms_graph_parse(text_of(argv[1]), &graph, &err) != MS_OK ||
        ms_hardware_parse(text_of(argv[2]), &hardware, &err) != MS_OK ||
        ms_plan_uniform(graph, &hardware, &config, MS_TECHNIQUE_MADE_UP, &plan, &err) != MS_OK ||
        ms_plan_parse(ms_plan_to_json(plan), &read, &err) != MS_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    for (uint32_t i = 0; i < read->entry_count; i++) {
        if (read->entries[i].technique == MS_TECHNIQUE_MADE_UP) {
            printf("%s", ms_plan_explain(read, i));
        }
    }
    printf("%s\n", ms_technique_of(MS_TECHNIQUE_MADE_UP)->colour);
    return 0;
}
"""


def _quietly(*command: str, cwd: pathlib.Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_one_row_is_all_that_a_technique_needs_to_be_planned(tmp_path: pathlib.Path) -> None:
    copy, scripts = tmp_path / "copy", pathlib.Path(sysconfig.get_path("scripts"))
    for name in ("assets", "include", "src", "cli", "bench", "server", "LICENSES"):
        shutil.copytree(ROOT / name, copy / name)
    for name in ("meson.build", "meson.options", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    table = copy / "include" / "memscale" / "technique.h"
    assert table.read_text().count(TABLE_END) == 1
    table.write_text(table.read_text().replace(TABLE_END, ROW + TABLE_END))
    (copy / "made_up.c").write_text(SOURCE)
    (copy / "meson.build").write_text((copy / "meson.build").read_text() + PROGRAM)

    options = [
        "-Dpython=disabled",
        "-Dtests=false",
        "-Dshared=false",
        "-Dserver=disabled",
        "-Doptimization=0",
        "-Ddebug=false",
    ]
    _quietly(str(scripts / "meson"), "setup", "build", *options, cwd=copy)
    _quietly(str(scripts / "ninja"), "-C", "build", "made_up", "memscale", cwd=copy)
    data = ROOT / "tests" / "cli" / "data"
    inputs = [str(data / "graph_small.json"), str(data / "hardware_disk.json")]

    used = _quietly(str(copy / "build" / "made_up"), *inputs, cwd=copy)
    assert "made_up - a technique that only this test knows" in used  # chosen and explained
    assert used.endswith("#123456\n")
    program = [str(copy / "build" / "memscale"), "plan", "--graph", inputs[0], "--hardware", inputs[1]]
    table_of_budgets = _quietly(*program, "--sweep", "3", "--csv", cwd=copy)
    assert ",made_up," in table_of_budgets.splitlines()[0]
