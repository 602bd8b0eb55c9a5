"""The benchmark suite and the demo: real models, real steps, measured peaks.

``python -m memscale.benchmarks`` runs the suite, and ``python -m memscale.benchmarks.demo`` runs the demo.
Every run is a separate child process, so that peaks do not mix.
"""

from .cases import BENCHMARK_MODELS

__all__ = ["BENCHMARK_MODELS"]
