"""Before a run: will it fit, what would memscale save, and which batch is the largest.

Judgements and search are C's (`memscale/outlook.h`, `memscale/autotuning.h`).
"""

from .predictor import OOMPredictor, Prediction, Savings, estimate_savings
from .tuner import AutoTuner, Trial, TuningResult

__all__ = ["AutoTuner", "OOMPredictor", "Prediction", "Savings", "Trial", "TuningResult", "estimate_savings"]
