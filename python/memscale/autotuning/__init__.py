"""Predicts before a run whether it fits and how much memscale saves, and finds the largest batch.

The judgement and the search are in C (`memscale/outlook.h`, `memscale/autotuning.h`).
"""

from .predictor import OOMPredictor, Prediction, Savings, estimate_savings
from .tuner import AutoTuner, Trial, TuningResult

__all__ = ["AutoTuner", "OOMPredictor", "Prediction", "Savings", "Trial", "TuningResult", "estimate_savings"]
