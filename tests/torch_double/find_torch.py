#!/usr/bin/env python3
"""Prints the folder of a torch that the double of its CUDA can be built for, or nothing."""

import importlib.metadata
import importlib.util
import os

WANTED = "2.13."  # the headers differ from release to release


def main() -> None:
    """Looks without importing torch, which takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return
    folder = os.path.dirname(spec.origin)
    has_cuda = os.path.exists(os.path.join(folder, "lib", "libtorch_cuda.so"))
    if importlib.metadata.version("torch").startswith(WANTED) and not has_cuda:
        print(folder)


if __name__ == "__main__":
    main()
