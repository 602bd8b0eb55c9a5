#!/usr/bin/env python3
"""Prints the folder of the installed torch if the double of its CUDA can be built for it; otherwise nothing."""

import importlib.metadata
import importlib.util
import os

WANTED = "2.13."  # headers change with each release


def main() -> None:
    """Finds torch without importing it, which would take seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return
    folder = os.path.dirname(spec.origin)
    has_cuda = os.path.exists(os.path.join(folder, "lib", "libtorch_cuda.so"))
    if importlib.metadata.version("torch").startswith(WANTED) and not has_cuda:
        print(folder)


if __name__ == "__main__":
    main()
