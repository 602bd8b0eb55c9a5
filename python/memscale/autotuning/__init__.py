"""Before a run: does it fit, how much would memscale save, and which batch is the largest.

C judges and searches (`memscale/outlook.h`, `memscale/autotuning.h`).
"""

from .predictor import OOMPredictor, Prediction, Savings, estimate_savings
from .tuner import AutoTuner, Trial, TuningResult

__all__ = ["AutoTuner", "OOMPredictor", "Prediction", "Savings", "Trial", "TuningResult", "estimate_savings"]
