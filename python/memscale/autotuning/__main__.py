"""``python -m memscale.autotuning``: prints the graph of a training step of a Hugging Face configuration.

It is the part of ``memscale predict`` that needs torch. The program starts it and plans from what it prints.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from typing import Any

from ..errors import IntegrationError, MemScaleError
from .configured import DTYPES, OPTIMIZERS, compiled_graph, model_of, optimizer_of, sample_of


def _configuration(path: str) -> Any:
    """The transformers configuration in the file."""
    from transformers import AutoConfig

    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    if not isinstance(document, dict) or not isinstance(document.get("model_type"), str):
        raise IntegrationError("model_type: a Hugging Face configuration names its family here")
    try:
        return AutoConfig.for_model(document.pop("model_type"), **document)
    except Exception as error:  # transformers and its validators raise many types
        raise IntegrationError(str(error).partition("\n")[0]) from error


def _graph(arguments: argparse.Namespace) -> str:
    from ..tracing.profiler import MemoryProfiler

    model = model_of(_configuration(arguments.hf), arguments.dtype, arguments.lora)
    sample = sample_of(model, arguments.batch, arguments.seq)
    optimizer = optimizer_of(model, arguments.optimizer)
    graph = MemoryProfiler().trace(model, (), sample, optimizer=optimizer)
    if arguments.compile is not None:
        return compiled_graph(model, sample, optimizer, graph, arguments.compile)
    return graph


def main(argv: list[str] | None = None) -> int:
    """Prints the graph's JSON. The exit status is 2, with one line on stderr, if the model can't be built or traced."""
    parser = argparse.ArgumentParser(prog="memscale predict", description=__doc__, exit_on_error=False)
    parser.add_argument("--hf", required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--seq", type=int)
    parser.add_argument("--dtype", choices=DTYPES, default=DTYPES[0])
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    parser.add_argument("--lora", type=int, metavar="RANK")
    parser.add_argument("--compile", metavar="BACKEND")
    try:
        arguments = parser.parse_args(argv)
    except argparse.ArgumentError as error:
        print(f"memscale: predict: {error.argument_name}: {error.message}", file=sys.stderr)
        return 2
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a prediction downloads nothing
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    warnings.simplefilter("ignore")  # about the model's code, which isn't the asker's
    try:
        print(_graph(arguments))
    except ImportError as error:
        print(f"memscale: predict: {error}: this needs a Python with torch and transformers", file=sys.stderr)
    except (OSError, ValueError, MemScaleError) as error:
        print(f"memscale: predict: --hf {arguments.hf}: {error}", file=sys.stderr)
    else:
        return 0
    return 2


if __name__ == "__main__":
    sys.exit(main())
