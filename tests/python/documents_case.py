"""Runs the examples of a page, or of all docstrings, one after the other in one folder. Prints a line of JSON for
each. test_documents.py starts it in a separate process. Not a test by itself.

Every example of a page can use the names that the guide's section "What the examples use" defines. `OWN` below
defines the names that stand for the reader's own objects (a data set, a Lightning module).
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import io
import json
import logging
import os
import pathlib
import re
import shlex
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(pathlib.Path(__file__).parent))

FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SETUP_SECTION = "## What the examples use"

# ---- the reader's own objects ---------------------------------------------------------


def _trainer_arguments(scene: dict[str, Any]) -> Any:
    from trainer_support import arguments

    return arguments("trainer")


def _lightning_module(scene: dict[str, Any]) -> Any:
    import lightning
    import torch

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = scene["model"]

        def training_step(self, ids: Any, index: int) -> Any:
            return self.model(input_ids=ids, labels=ids).loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    return Module()


def _train(model: Any, optimizer: Any) -> None:
    import torch

    ids = torch.zeros(1, 8, dtype=torch.int64)
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def _hidden(scene: dict[str, Any]) -> Any:
    import torch

    return torch.randn(8, scene["model"].config.n_embd)


def _backward_of(loss: Any) -> Any:
    loss.backward()
    return loss


def _imported(module: str, name: str | None = None) -> Callable[[dict[str, Any]], Any]:
    def load(scene: dict[str, Any]) -> Any:
        found = __import__(module, fromlist=["_"])
        return found if name is None else getattr(found, name)

    return load


def _data(scene: dict[str, Any]) -> Any:
    from trainer_support import Sentences

    return Sentences(4)


def _loader(x: Any) -> Any:
    import torch

    return torch.utils.data.DataLoader(x, batch_size=len(x))


OWN: dict[str, Callable[[dict[str, Any]], Any]] = {
    "args": _trainer_arguments,
    "backend": lambda scene: "gloo",
    "backward_of": lambda scene: _backward_of,
    "batches": lambda scene: [scene["x"], scene["x"]],
    "data": _data,
    "hidden": _hidden,
    "labels": lambda scene: scene["x"].new_zeros(8),
    "lightning": _imported("lightning"),
    "loader": lambda scene: _loader(scene["x"]),
    "logits": lambda scene: _hidden(scene)[:, :7].requires_grad_(),
    "module": _lightning_module,
    "step": lambda scene: lambda: _backward_of(scene["model"](**scene["batch"]).loss),
    "train": lambda scene: _train,
    "Config": _imported("memscale", "Config"),
    "DistributedDataParallel": _imported("torch.nn.parallel", "DistributedDataParallel"),
    "GPT2Config": _imported("transformers", "GPT2Config"),
    "Trainer": _imported("transformers", "Trainer"),
}

# Code to run before a docstring's example, by the name of the documented object.
AROUND = {
    "AdamW": "loss = model(**batch).loss",
    "AutoTuner": (
        "from memscale.autotuning import AutoTuner\nbatch = (torch.ones(2, 8),); model = torch.nn.Linear(8, 8)"
    ),
    "DecisionEngine": (
        "import json; config = Config(); batch = torch.ones(2, 8); model = torch.nn.Sequential(torch.nn.Linear(8, 8))\n"
        "from memscale.core.decision_engine import DecisionEngine; from memscale.core.profiler import MemoryProfiler\n"
        "hardware_json = json.dumps(MemoryProfiler(config).hardware())"
    ),
    "ExecutionPlan": "sample_input = batch",
    "Executor": "model = memscale.wrap(model, config)",
    "MemScaleCallback": (
        "from memscale.integrations.lightning import MemScaleCallback\n"
        "data = torch.utils.data.DataLoader(x, batch_size=1)\n"
        "import functools; lightning.Trainer = functools.partial(lightning.Trainer, max_steps=1, logger=False, "
        "enable_checkpointing=False, enable_progress_bar=False, accelerator='cpu')"
    ),
    "OOMPredictor": (
        "from memscale import OOMPredictor; import os; os.makedirs('gpt2')\n"
        "open('gpt2/config.json', 'w').write(GPT2Config(n_layer=2).to_json_string())"
    ),
    "accumulate": (
        "optimizer = memscale.optim.AdamW(model.parameters(), release_gradients=True)\nfirst = last = x\n"
        "forward = model; model = lambda ids: forward(input_ids=ids, labels=ids)"
    ),
    "cross_entropy": (
        "from memscale.techniques import cross_entropy\nmodel = torch.nn.Linear(4, 7); x = torch.ones(8, 4)"
    ),
    "linear_cross_entropy": "from memscale.techniques import linear_cross_entropy; ids = x",
}

# ---- one example ------------------------------------------------------------------------


def _add_own(scene: dict[str, Any], code: str) -> None:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name) and node.id in OWN and node.id not in scene:
            scene[node.id] = OWN[node.id](scene)


def _end(scene: dict[str, Any]) -> None:
    import torch

    import memscale

    for value in list(scene.values()):
        if isinstance(value, torch.nn.Module) and "_memscale_executor" in value.__dict__:
            memscale.detach(value)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _tell(where: str, run: Callable[[dict[str, Any]], None], setup: str) -> None:
    scene: dict[str, Any] = {"__name__": "__main__"}
    error = None
    try:
        exec(compile(setup, "<setup>", "exec"), scene)
        run(scene)
    except ModuleNotFoundError as missing:
        error = None if missing.name in ("lightning", "transformers") else traceback.format_exc()
    except BaseException:
        error = traceback.format_exc()
    finally:
        _end(scene)
    print(json.dumps({"where": where, "error": error}), flush=True)


def _setup() -> str:
    text = (ROOT / "docs/guide.md").read_text(encoding="utf-8")
    block = FENCE.search(text, text.index(SETUP_SECTION))
    assert block is not None
    return block.group(1)


# ---- pages ---------------------------------------------------------------------------------


def run_page(name: str) -> None:
    """Runs every block of Python of a page, and every call of the program."""
    text = (ROOT / name).read_text(encoding="utf-8")
    setup = _setup()
    import torch

    torch.compiler.set_default_backend("aot_eager")  # a machine need not have a C++ compiler
    for block in FENCE.finditer(text):
        code = block.group(1)
        line = text[: block.start()].count("\n") + 2

        def run(scene: dict[str, Any], code: str = code, line: int = line) -> None:
            if code == setup:
                return
            _add_own(scene, code)
            exec(compile("\n" * (line - 1) + code, name, "exec"), scene)

        _tell(f"{name}:{line}", run, setup)
    for number, line_text in enumerate(text.splitlines(), 1):
        if line_text.startswith("    memscale "):
            _run_program(f"{name}:{number}", line_text.partition("#")[0])


def _run_program(where: str, command: str) -> None:
    from program_support import program_path

    words = shlex.split(command)
    if "https://" in command:  # somebody's server: only the options are checked
        print(json.dumps({"where": where, "error": _unknown_options(words)}), flush=True)
        return
    done = subprocess.run([program_path(), *words[1:]], capture_output=True, text=True, check=False)
    allowed = (0, 1) if words[1] == "doctor" else (0,)  # 1: a check failed on this machine
    error = None if done.returncode in allowed else f"{command.strip()}: {done.returncode}\n{done.stderr}"
    print(json.dumps({"where": where, "error": error}), flush=True)


def _unknown_options(words: list[str]) -> str | None:
    from program_support import program_path

    done = subprocess.run([program_path(), words[1], "--help"], capture_output=True, text=True, check=True)
    unknown = [word for word in words if word.startswith("--") and word not in done.stdout]
    return f"memscale {words[1]} has no option {unknown}" if unknown else None


# ---- docstrings ---------------------------------------------------------------------------


def _docstrings() -> Iterator[tuple[str, str, str]]:
    """File, name and text of every docstring with an example. The name is that of the outermost definition if
    `AROUND` lacks the object's own."""
    for path in sorted((ROOT / "python/memscale").rglob("*.py")):
        for outer in ast.parse(path.read_text(encoding="utf-8")).body:
            for node in ast.walk(outer):
                if isinstance(node, ast.ClassDef | ast.FunctionDef) and ">>>" in (ast.get_docstring(node) or ""):
                    name = node.name if node.name in AROUND else outer.name  # type: ignore[attr-defined]
                    yield path.name, name, ast.get_docstring(node) or ""


def run_docstrings() -> None:
    """Runs every example of every docstring; compares its output if the docstring shows one."""
    setup = _setup()
    for file, name, text in _docstrings():

        def run(scene: dict[str, Any], name: str = name, text: str = text) -> None:
            examples = doctest.DocTestParser().get_examples(text)
            for code in (AROUND.get(name, ""), *(example.source for example in examples)):
                _add_own(scene, code)
            exec(AROUND.get(name, ""), scene)
            for example in examples:
                _run_example(scene, example)

        _tell(f"{file}: {name}", run, setup)


def _run_example(scene: dict[str, Any], example: doctest.Example) -> None:
    kind = "single" if example.want else "exec"
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        exec(compile(example.source, "<example>", kind), scene)
    if example.want and not doctest.OutputChecker().check_output(example.want, told.getvalue(), doctest.ELLIPSIS):
        raise AssertionError(f"{example.source}gives {told.getvalue()!r}, not {example.want!r}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main() -> None:
    logging.getLogger("memscale").addHandler(logging.NullHandler())
    logging.getLogger("memscale").propagate = False
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(_free_port()))
    import torch

    torch.set_num_threads(1)
    os.chdir(sys.argv[2])
    sizes = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 512, "n_positions": 512}
    pathlib.Path("config.json").write_text(json.dumps({"model_type": "gpt2", **sizes}))
    if sys.argv[1] == "docstrings":
        run_docstrings()
    else:
        run_page(sys.argv[1])


if __name__ == "__main__":
    main()
