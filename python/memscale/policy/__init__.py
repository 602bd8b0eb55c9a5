"""Stage 1: the policy that picks mode and eligible techniques for ``auto_policy=True``.

C owns the rules, the trees of a trained policy and their input (`memscale/policy.h`). This package
is their Python interface, and finds a trained artifact.
"""

from .artifact import TrainedPolicy, load_policy, seal_policy
from .decision import StrategyContext, StrategyDecision, plan_by_policy

__all__ = [
    "StrategyContext",
    "StrategyDecision",
    "TrainedPolicy",
    "load_policy",
    "plan_by_policy",
    "seal_policy",
]
