"""The default suite: what a budget costs beside the fastest run that does without one.

Under glibc, unmodified training spends much of its time on pages that glibc has given back to the system. So it also
runs under each other allocator that is installed, and checkpointing under the fastest of them. Every other run takes
turns with the fastest unmodified one, step by step, because a machine can be fast for minutes and slow for others.
Bits are compared with that run too.
"""

from __future__ import annotations

import math
import os
import statistics
from typing import Any

from .allocators import installed
from .cases import CASES
from .runner import Child, Run, in_turn, run

__all__ = ["DEFAULT_CASES", "SUITES", "Suite"]

# A budget is in GB, a share of the fastest unmodified run's peak ("0.75x"), or a multiple of the smallest budget
# that the planner names ("1.05m"). "+": memscale's optimizer trains, and the plan may offload its
# state and release gradients. "*": as "+", and the plan may also change the order of sums.
SUITES = {
    "gpt2": ("0.85x", "0.7x", "0.5x", "1.05m", "2.1+", "1.7+", "1.45*"),
    "bert": ("0.85x", "0.7x", "1.05m"),
    "llama": ("0.85x", "0.7x", "1.05m"),
    "vit": ("0.85x", "0.7x", "1.05m"),
    "gpt2-tiny": ("1.05m",),
}
DEFAULT_CASES = ("gpt2", "bert", "llama", "vit")

# Largest allowed relative difference of losses: if only the update rounds differently, and if sums do too.
UPDATED, ROUNDED = 1e-5, 1e-3

# The largest ratio wanted of a budget that is at least this share of the fastest unmodified run's peak.
_WANTED = ((0.5, 1.02), (0.35, 1.08))


class Suite:
    """One round of one case. Prints each row when it is ready."""

    def __init__(self, name: str, steps: int) -> None:
        self._name = name
        self._steps = steps
        self._rows: list[dict[str, Any]] = []
        self._fastest: Run  # unmodified
        self._library: str | None = None  # the allocator of the fastest
        self._checkpointing: list[dict[str, Any]] = []  # rows

    def run(self) -> list[dict[str, Any]]:
        """Trains the case in every way. `held` says of each row whether bits and budget are what they must be."""
        case = CASES[self._name]
        print(f"\n{self._name} {case.batch} x {case.sequence}", flush=True)
        columns = f"{'budget':>8}{'peak GB':>9}{'predicted':>11}{'off by':>8}{'step s':>8}{'ratio':>7}"
        print(f"  {'run':<20}{columns}  gradients", flush=True)
        self._run_peers()
        if not self._fastest.finished:
            print("    no unmodified run finished, so there is nothing to compare with", flush=True)
            return self._rows
        if self._name == "gpt2":
            self._run_full_offload()
        for text in SUITES[self._name]:
            self._run_budget(text)
        return self._rows

    def _run_peers(self) -> None:
        libraries: dict[str, str | None] = {"": None}
        libraries |= {f", {allocator}": library for allocator, library in installed().items()}
        unmodified = {
            label: run(self._name, "plain", steps=self._steps, allocator=library)
            for label, library in libraries.items()
        }
        fastest = min(unmodified, key=lambda label: _seconds(unmodified[label]))
        self._fastest, self._library = unmodified[fastest], libraries[fastest]
        for label, outcome in unmodified.items():
            self._note(outcome, self._fastest, f"unmodified{label}")
        allocators = {"": None, fastest: self._library}
        for label, preloaded in allocators.items():
            outcome, peer = self._beside_unmodified("hf", allocator=preloaded)
            row = self._note(outcome, peer, f"HF{label}")
            if "ratio" in row:
                self._checkpointing.append(row)

    def _run_full_offload(self) -> None:
        """Offloads all saved tensors of layers to disk, with checkpointing's peak as the budget. Runs once with all
        cores, and once with torch on one core fewer."""
        if not self._checkpointing:
            return
        budget_gb = self._checkpointing[0]["peak_bytes"] / 1e9
        row = self._note(*self._beside_unmodified("uniform", budget_gb=budget_gb), "all offloaded", budget_gb)
        _want(row, 1.05)
        fewer = len(os.sched_getaffinity(0)) - 1
        if fewer > 0:
            outcomes = self._beside_unmodified("uniform", budget_gb=budget_gb, threads=fewer)
            _want(self._note(*outcomes, f"the same, {fewer} thread(s)", budget_gb), 1.03)

    def _beside_unmodified(self, variant: str, *, threads: int = 0, **options: Any) -> tuple[Run, Run]:
        """A run, and the fastest unmodified one in turn with it."""
        common: dict[str, Any] = {"steps": self._steps, "threads": threads, "takes_turns": True}
        ours = Child(self._name, variant, **common, **options)
        theirs = Child(self._name, "plain", allocator=self._library, **common)
        outcome, peer = in_turn([ours, theirs])
        return outcome, peer

    def _run_budget(self, text: str) -> None:
        """Trains under one budget of SUITES."""
        config = {"enable_tiling": True} if text.endswith("*") else None
        variant = "memscale-all" if text.endswith(("+", "*")) else "memscale"
        budget_gb = self._gb(text.rstrip("+*"))
        outcomes = self._beside_unmodified(variant, budget_gb=budget_gb, config=config)
        row = self._note(*outcomes, variant, budget_gb, ROUNDED if config else UPDATED)
        if variant == "memscale" and "ratio" in row:
            self._judge(row)

    def _gb(self, amount: str) -> float:
        if amount.endswith("x"):
            return float(amount[:-1]) * float(self._fastest.result["peak_bytes"]) / 1e9
        if amount.endswith("m"):
            return float(amount[:-1]) * self._smallest_budget_gb()
        return float(amount)

    def _smallest_budget_gb(self) -> float:
        """The smallest budget that the planner names when it refuses an impossible one."""
        outcome = run(self._name, "memscale", budget_gb=0.001, steps=1)
        marker = "smallest budget that would fit is "
        if marker not in outcome.stderr:
            raise RuntimeError(f"{self._name}: no smallest budget was named:\n{outcome.stderr}")
        return float(outcome.stderr.rsplit(marker, 1)[1].split("(")[1].split()[0]) / 1e9

    def _judge(self, row: dict[str, Any]) -> None:
        """Says which goals a budget missed."""
        share = row["budget_gb"] * 1e9 / self._fastest.result["peak_bytes"]
        _want(row, next((most for least, most in _WANTED if share >= least - 1e-9), math.inf))
        for peer in self._checkpointing:
            if peer["peak_bytes"] <= row["budget_gb"] * 1e9 and row["ratio"] > peer["ratio"]:
                print(f"    MISSED: {peer['run']} fits this budget and takes {peer['ratio']:.3f}", flush=True)

    def _note(
        self, outcome: Run, peer: Run, label: str, budget_gb: float | None = None, apart: float = UPDATED
    ) -> dict[str, Any]:
        """Adds and prints a row. Its ratio and its bits are compared with those of `peer`."""
        row: dict[str, Any] = {"case": self._name, "run": label, "budget_gb": budget_gb, "held": False}
        self._rows.append(row)
        for ran, whose in ((outcome, ""), (peer, "the unmodified run beside it ")):
            if not ran.finished:
                print(f"  {label:<20} {whose}did not finish (status {ran.exit_code})\n{ran.stderr}", flush=True)
                return row
        peak = outcome.result["peak_bytes"]
        predicted = outcome.result.get("predicted_peak_bytes")
        row |= {
            "peak_bytes": peak,
            "predicted_peak_bytes": predicted,
            "step_seconds": _seconds(outcome),
            "ratio": _ratio(outcome, peer),
            "same_bits": _is_same(outcome, peer, apart),
        }
        row["held"] = row["same_bits"] and (budget_gb is None or peak <= budget_gb * 1e9)
        off = f"{(predicted - peak) / peak * 100:+.1f}%" if predicted else "-"
        print(
            f"  {label:<20}{f'{budget_gb:.2f}' if budget_gb else '-':>8}{peak / 1e9:>9.2f}"
            f"{f'{predicted / 1e9:.2f}' if predicted else '-':>11}{off:>8}{row['step_seconds']:>8.2f}"
            f"{row['ratio']:>7.2f}  {_words(outcome) if row['same_bits'] else 'DIFFERENT'}"
            f"{'' if row['held'] else '  NOT HELD'}",
            flush=True,
        )
        return row


def _want(row: dict[str, Any], most: float) -> None:
    if row.get("ratio", 0.0) > most:
        print(f"    MISSED: {row['ratio']:.3f} of the unmodified step, at most {most} wanted", flush=True)


def _ratio(outcome: Run, peer: Run) -> float:
    """The median of the steps' ratios, without the first step, which faults memory in and makes the plan."""
    pairs = list(zip(outcome.steps, peer.steps, strict=True))
    return float(statistics.median(ours["seconds"] / theirs["seconds"] for ours, theirs in pairs[1:] or pairs))


def _seconds(outcome: Run) -> float:
    """The seconds of a step; infinite if the run did not finish."""
    return float(outcome.result["step_seconds"]) if outcome.finished else math.inf


def _words(outcome: Run) -> str:
    return "losses agree" if outcome.variant == "memscale-all" else "equal"


def _is_same(outcome: Run, plain: Run, apart: float) -> bool:
    """Compares losses and gradients bit by bit. With memscale's optimizer it compares only losses, which may differ by
    `apart`: the update rounds differently, and gradients are freed before they could be hashed."""
    if outcome.variant == "memscale-all":
        pairs = zip(outcome.steps, plain.steps, strict=True)
        return all(math.isclose(ours["loss"], theirs["loss"], rel_tol=apart) for ours, theirs in pairs)
    return [(s["loss"], s["digest"]) for s in outcome.steps] == [(s["loss"], s["digest"]) for s in plain.steps]
