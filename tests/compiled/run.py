"""Trains each model of subjects.py compiled layer by layer, and compares to the bit: the same layers compiled the same
way, unwrapped; under each technique; and under the plan that `wrap()` makes for itself.

`python run.py [NAME ...]` runs each model in a process of its own, prints a line for each, and exits with status 1 if
one broke a promise. Losses, gradients and parameters must be equal; an uncompiled run must differ in some bit, so that
a fall back to uncompiled code is seen; and torch's compiler must see no frame more than in a second unwrapped run.
Takes a minute a model. Called by scripts/compiled.sh, which lets it find tests/python; no test calls it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from typing import Any

import torch
from execute_support import TECHNIQUES, assert_nothing_left, assert_same, executing, gradients, state_of, uniform
from subjects import SUBJECTS, Subject
from torch._dynamo.utils import counters

import memscale
from memscale.model.layers import find_layers

STEPS = 3
FORCED = memscale.Config(force_optimize=True, enable_logging=False)


def compiled(subject: Subject) -> torch.nn.Module:
    model = subject.make()
    for _, layer in find_layers(model):
        layer.compile()
    return model


def train(subject: Subject, model: torch.nn.Module) -> list[Any]:
    """Losses, gradients and, at the end, parameters and buffers."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    seen: list[Any] = []
    for step in range(STEPS):
        torch.manual_seed(step)
        result = model(**subject.batch(step))
        loss = result if isinstance(result, torch.Tensor) else result.loss
        loss.backward()
        seen += [loss.detach().clone(), gradients(model)]
        optimizer.step()
        optimizer.zero_grad()
    return [*seen, state_of(model)]


def frames() -> dict[str, int]:
    """Counts the frames and graphs that torch's compiler has seen since the process began."""
    return {**counters["frames"], "graphs": counters["stats"]["unique_graphs"]}


def more_frames(before: dict[str, int]) -> dict[str, int]:
    return {name: count - before.get(name, 0) for name, count in frames().items() if count != before.get(name, 0)}


def difference(expected: Any, found: Any) -> str:
    """Names the first difference, or is empty."""
    try:
        assert_same(expected, found)
    except AssertionError as error:
        return str(error).splitlines()[0]
    return ""


def under(subject: Subject, technique: str, expected: list[Any], usual: dict[str, int]) -> list[str]:
    """Trains under a technique, or if it is "wrap", under the plan that wrap() makes. Returns the broken promises."""
    model, before = compiled(subject), frames()
    if technique == "wrap":
        memscale.wrap(model, FORCED)
        found = train(subject, model)
        counted = model._memscale_executor.counters()
        memscale.detach(model)
    else:
        with (
            tempfile.TemporaryDirectory() as folder,
            executing(model, uniform(model, technique), folder) as executor,
        ):
            found = train(subject, model)
            counted = executor.counters()
            assert_nothing_left(executor)
    acted = counted["recomputed_layers"] or counted["fetched_bytes"]
    extra = more_frames(before)
    wrong = [difference(expected, found), "" if acted else "did nothing"]
    wrong.append("" if extra == usual else f"the compiler saw {extra}, unwrapped {usual}")
    return [f"{technique}: {text}" for text in wrong if text]


def run(name: str) -> list[str]:
    """Trains one model every way. Returns the broken promises."""
    torch.set_num_threads(1)
    torch._inductor.config.compile_threads = 1
    subject = SUBJECTS[name]
    expected = train(subject, compiled(subject))
    before = frames()
    again = difference(expected, train(subject, compiled(subject)))
    usual = more_frames(before)
    if again:
        return [f"two unwrapped runs differ: {again}"]
    wrong = [] if difference(expected, train(subject, subject.make())) else ["uncompiled layers give the same bits"]
    for technique in (*TECHNIQUES, "wrap"):
        wrong += under(subject, technique, expected, usual)
    return wrong


def run_apart(name: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, "--inside", name], stdout=subprocess.PIPE, text=True
    )
    lines = done.stdout.splitlines()
    return json.loads(lines[-1]) if done.returncode == 0 and lines else [f"ended with status {done.returncode}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(SUBJECTS)}")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.names) - set(SUBJECTS):
        parser.error(f"no model named {', '.join(sorted(unknown))}; there are {', '.join(SUBJECTS)}")
    if options.inside:
        print(json.dumps(run(options.names[0])))
        return 0
    kept = 0
    for name in options.names or SUBJECTS:
        wrong = run_apart(name)
        kept += not wrong
        print(f"{name:10} {'; '.join(wrong) or 'kept'}", flush=True)
    total = len(options.names or SUBJECTS)
    print(f"{kept} of {total} models kept their bits under {len(TECHNIQUES)} techniques and their own plan")
    return 0 if kept == total else 1


if __name__ == "__main__":
    sys.exit(main())
