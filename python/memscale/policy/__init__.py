"""The policy, which picks mode and eligible techniques if ``auto_policy=True``.

C owns the rules, the trees of a trained policy and their input (`memscale/policy.h`). This package
is their Python interface. It also finds the file of a trained policy.
"""

from ..errors import PolicyFallbackNeeded
from .artifact import TrainedPolicy, load_policy, seal_policy
from .decision import StrategyContext, StrategyDecision, plan_by_policy

__all__ = [
    "PolicyFallbackNeeded",
    "StrategyContext",
    "StrategyDecision",
    "TrainedPolicy",
    "load_policy",
    "plan_by_policy",
    "seal_policy",
]
