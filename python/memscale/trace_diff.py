"""``python -m memscale.trace_diff FILE.py:FUNCTION``: shows the differences between a model's trace and a real step.

Use it to find out why a peak is predicted wrongly (docs/peaks.md). `FUNCTION` takes nothing and returns
``(model, inputs)`` or ``(model, inputs, optimizer)``: the model as you would wrap it, and the arguments of
one training forward (a tensor, a tuple or a dict). It is called twice: one model is traced, the other trains
a real step. The report names, node by node, every allocation, release and saved tensor that
only one of the two has, with its bytes and the number of operators before it.

Exit status: 0 if the two agree, 1 if they differ, 2 if the trace or the step failed.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _core
from .errors import MemScaleError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

__all__ = ["compare", "main"]


class _WrongModel(Exception):
    """The model could not be built, or its trace or its step failed."""


def _load(place: str) -> Callable[[], Any]:
    """The function that ``FILE.py:FUNCTION`` or ``package.module:FUNCTION`` names."""
    module_name, _, function = place.rpartition(":")
    if not module_name:
        raise _WrongModel(f"{place!r} is not FILE.py:FUNCTION or MODULE:FUNCTION")
    if module_name.endswith(".py"):
        path = Path(module_name).resolve()
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None or not path.exists():
            raise _WrongModel(f"the file {module_name} does not exist")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(module_name)
    found = getattr(module, function, None)
    if not callable(found):
        raise _WrongModel(f"{module_name} has no function {function!r}")
    return found  # type: ignore[no-any-return]


def _made(make: Callable[[], Any]) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any], torch.optim.Optimizer]:
    import torch

    from .session.setup import sample_arguments

    made = make()
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not isinstance(made[0], torch.nn.Module):
        raise _WrongModel("the function must return (model, inputs) or (model, inputs, optimizer)")
    model, inputs, *rest = made
    args, kwargs = sample_arguments(model, inputs)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return model, args, kwargs, rest[0] if rest else torch.optim.AdamW(trained)


def _traced(make: Callable[[], Any]) -> str:
    from .tracing.profiler import MemoryProfiler

    return MemoryProfiler().trace(*_made(make))


def _seen(make: Callable[[], Any]) -> str:
    from .tracing.real_step import trace_real_step

    return trace_real_step(*_made(make))


def compare(make: Callable[[], Any]) -> tuple[str, int]:
    """Traces one model and trains a second one, built alike, for one step.

    Args:
        make: returns ``(model, inputs)`` or ``(model, inputs, optimizer)``; called twice.

    Returns:
        The report, and the number of places that differ.
    """
    return _core.trace_diff(_traced(make), _seen(make), _core.hardware_probe(None))


def main(argv: list[str] | None = None) -> int:
    """The command; see the module."""
    parser = argparse.ArgumentParser(prog="python -m memscale.trace_diff", description=__doc__)
    parser.add_argument("model", help="FILE.py:FUNCTION or MODULE:FUNCTION")
    place = parser.parse_args(argv).model
    try:
        report, differences = compare(_load(place))
    except (_WrongModel, MemScaleError) as error:
        print(f"trace_diff: {error}", file=sys.stderr)
        return 2
    print(report, end="")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
