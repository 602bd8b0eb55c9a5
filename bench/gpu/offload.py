"""The measurements of bench/gpu/offload.sh. Writes them to a JSON file and a page of Markdown that lists missed goals.

    offload.py RESULTS [--small] [--models a,b] [--runs x,y] [--limit SECONDS]

Each model has a process of its own, which trains it once for each variant. The runs begin with the same weights and
random numbers, and compute under autocast to BF16. --small makes tiny models, to try the program out; their times say
nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import gpu_models as models

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic products need it

# Settings of the wrapped runs. A share is a budget, of the unmodified run's peak. A state is the place of that of
# memscale's AdamW; without one the optimizer is torch's.
WRAPPED: dict[str, dict[str, Any]] = {
    "offload": {"force_optimize": True, "enable_checkpointing": False},
    "offload, waited for": {"force_optimize": True, "enable_checkpointing": False, "async_offload": False},
    "recompute": {"force_optimize": True, "enable_offloading": False},
    "state in host memory": {
        "force_optimize": True,
        "enable_checkpointing": False,
        "enable_offloading": False,
        "state": "host",
    },
    "75%": {"share": 0.75},
    "50%": {"share": 0.5},
    "35%": {"share": 0.35},
}
# The largest models have these runs instead: full fine-tuning on a small card.
FULL_TUNING: dict[str, dict[str, Any]] = {
    "state in host memory": WRAPPED["state in host memory"],
    **{
        f"{budget_gb} GB": {"budget_bytes": budget_gb * 10**9, "mode": "aggressive", "state": "memory"}
        for budget_gb in (24, 16, 8)
    },
}
OF_LARGEST = {models.LARGEST: ("state in host memory", "16 GB", "8 GB"), models.BF16: ("state in host memory", "24 GB")}
OTHERS = ("HF checkpointing", "save_on_cpu", "TRL offload")
COMPILED = "compiled"  # in place of a model: the rows of bench/compiled.py
COMPILED_SIZES = {"layers": 12, "width": 1024, "batch": 16, "length": 1024, "steps": 8}
SMALL_COMPILED_SIZES = {"layers": 4, "width": 64, "batch": 16, "length": 256, "steps": 3}
# Goals: errors of predicted peaks, and the step time with offload over the unmodified step's.
MEDIAN_ERROR, WORST_ERROR, OFFLOAD_RATIO = 0.03, 0.08, 1.05
STEPS, WARM_STEPS = 6, 3
LIMIT_S = 540
LARGE_SHARE = 0.5  # of the time, for the large model
DIGEST_PIECE, SMALL_DIGEST_PIECE = 1 << 20, 1 << 14  # numbers that are hashed at a time: 24 MB of temporaries
COPY_BYTES, SMALL_COPY_BYTES = 256 << 20, 1 << 20
TRACEBACK_CHARACTERS = 3000


# ---- one run ----------------------------------------------------------------------------------------------------


def other_way(name: str, model: Any) -> Any:
    """Arranges `model` for a technique that is not memscale's; returns the context of its forwards."""
    import contextlib

    import torch

    if name == "HF checkpointing":
        model.gradient_checkpointing_enable()
    elif name == "save_on_cpu":
        return torch.autograd.graph.save_on_cpu(pin_memory=True)
    elif name == "TRL offload":
        from trl.models.activation_offloading import OffloadActivations

        return OffloadActivations()
    return contextlib.nullcontext()


def digest_of(tensors: list[Any]) -> str:
    """The tensors' bits, as one text. Hashed on the device: copying and hashing gigabytes on the host takes minutes.
    Integers are multiplied and added modulo 2**64, so the order of a sum doesn't matter."""
    import torch

    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    if not tensors:
        return ""
    device, most = tensors[0].device, max(tensor.numel() for tensor in tensors)
    digest = torch.zeros((), dtype=torch.int64, device=device)
    place = torch.arange(min(most, DIGEST_PIECE), device=device) * 0x2545F4914F6CDD1D
    for tensor in tensors:
        for piece in tensor.detach().flatten().view(integers[tensor.itemsize]).split(DIGEST_PIECE):
            mixed = (piece ^ place[: piece.numel()]) * 0x369DEA0F31A53F85
            digest = digest * 0x5851F42D4C957F2D + (mixed ^ (mixed >> 29)).sum()
    return f"{digest.item() % (1 << 64):016x}"


def optimizer_of(model: Any, is_bf16: bool, state: str) -> Any:
    """memscale's AdamW."""
    import memscale

    form = {"bf16": "split"} if is_bf16 else {}
    return memscale.optim.AdamW(model.parameters(), lr=1e-4, state=state, **form)


Spans = list[tuple[float, float]]


def joined(spans: Spans) -> Spans:
    """Spans of time in order, without gaps of no length and without overlaps."""
    edges: Spans = []
    for begun, ended in sorted(spans):
        if edges and begun <= edges[-1][1]:
            edges[-1] = (edges[-1][0], max(edges[-1][1], ended))
        else:
            edges.append((begun, ended))
    return edges


def share_beside(copies: Spans, kernels: Spans) -> float | None:
    """The share of the time of some copy in which a kernel runs too; None without copies. A large model has 20,000 of
    both, so each list is walked once."""
    copies, kernels = joined(copies), joined(kernels)
    total, beside, at = sum(ended - begun for begun, ended in copies), 0.0, 0
    for begun, ended in copies:
        while at < len(kernels) and kernels[at][1] <= begun:
            at += 1
        here = at
        while here < len(kernels) and kernels[here][0] < ended:
            beside += min(ended, kernels[here][1]) - max(begun, kernels[here][0])
            here += 1
    return beside / total if total > 0 else None


def overlapped_share(step: Any) -> float | None:
    """The share of the copies' time that passes beside kernels in one step; None if the profiler shows no copy."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        step()
        torch.cuda.synchronize()
    spans: dict[bool, Spans] = {True: [], False: []}
    for event in seen.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            is_copy = "memcpy" in event.name.lower() and "dtod" not in event.name.lower()
            spans[is_copy].append((event.time_range.start, event.time_range.end))
    return share_beside(spans[True], spans[False])


def train(model: Any, batch: dict[str, Any], variant: str, plain_peak_bytes: int) -> dict[str, Any]:
    """Trains a few steps; returns digests of the gradients, peaks, step time and the plan's prediction."""
    import torch

    settings = dict((WRAPPED | FULL_TUNING).get(variant, {}))
    share = settings.pop("share", None)
    budget_bytes = settings.pop("budget_bytes", None if share is None else int(share * plain_peak_bytes))
    context = other_way(variant, model)
    is_bf16 = next(model.parameters()).dtype is torch.bfloat16  # its state is in fp32 in every run
    optimizer = optimizer_of(model, is_bf16, "memory") if is_bf16 else torch.optim.AdamW(model.parameters(), lr=1e-4)
    if variant in WRAPPED | FULL_TUNING:
        import memscale

        state = settings.pop("state", None)
        if budget_bytes is not None:
            settings["memory_budget_gb"] = budget_bytes / 1e9
        config = memscale.Config(enable_logging=False, **settings)
        if state is None:
            memscale.wrap(model, config)
        else:
            optimizer = optimizer_of(model, is_bf16, state)
            memscale.apply_all_optimizations(model, optimizer, config)
    torch.cuda.reset_peak_memory_stats()
    digests: list[str] = []
    times: list[float] = []
    peaks: list[int] = []

    def step() -> None:
        with context, torch.autocast("cuda", torch.bfloat16):
            loss = model(**batch).loss
        loss.backward()

    torch.manual_seed(2)
    for index in range(STEPS):
        if index == WARM_STEPS:
            peaks.append(torch.cuda.max_memory_allocated())
            torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        step()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begun
        digests.append(digest_of([p.grad for p in model.parameters() if p.grad is not None]))
        begun = time.perf_counter()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        times.append(seconds + time.perf_counter() - begun)
    peaks.append(torch.cuda.max_memory_allocated())
    digests.append(digest_of(list(model.parameters())))
    run = {
        "digests": digests,
        "peak_bytes": max(peaks),
        "settled_peak_bytes": peaks[-1],
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "step_s": statistics.median(times[WARM_STEPS:]),
        "budget_bytes": budget_bytes,
    }
    if variant in WRAPPED | FULL_TUNING:
        executor = model._memscale_executor
        run["predicted_bytes"] = executor.plan.predicted_peak_bytes if executor.plan is not None else None
        run["counters"] = dict(executor.counters())
        if variant == "offload":
            try:
                run["overlapped_share"] = overlapped_share(step)
            except Exception as error:  # a machine may forbid profiling
                run["overlapped_share"], run["profile_error"] = None, str(error)[:300]
    return run


def variants_of(name: str, chosen: list[str]) -> list[str]:
    """The variants of a model, or the chosen ones of them and the unmodified run. torch rounds pinned memory up to
    powers of two: of the large model's saved tensors it would take more than most hosts have."""
    others = OTHERS[:1] if name == models.LARGE else OTHERS
    if name in OF_LARGEST:
        return ["unmodified", *OF_LARGEST[name]]
    every = ["unmodified", "unmodified again", *WRAPPED, *others]
    return [variant for variant in every if not chosen or variant in ("unmodified", *chosen)]


def runs_of(name: str, is_small: bool, chosen: list[str], tell: Any) -> None:
    """Trains a model in every variant (or the chosen ones) and tells each result at once. A variant that fails doesn't
    stop the others."""
    import copy
    import gc

    import torch

    global DIGEST_PIECE
    if is_small:
        DIGEST_PIECE = SMALL_DIGEST_PIECE  # of a small model's peak, the temporaries would be most
    # With warn_only, attention would take faster algorithms whose bits differ from run to run.
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    made, batch = models.make(name, is_small)
    plain: dict[str, Any] = {}
    for variant in variants_of(name, chosen):
        try:
            run = train(copy.deepcopy(made).cuda(), batch, variant, plain.get("peak_bytes", 0))
        except Exception as error:
            run = {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"[:300]}
            run["traceback"] = traceback.format_exc()[-TRACEBACK_CHARACTERS:]
        tell({"model": name, "variant": variant, "run": run})
        gc.collect()
        torch.cuda.empty_cache()
        if variant == "unmodified":
            if "error" in run:
                return
            plain = run


# ---- the link -----------------------------------------------------------------------------------------------------


def copy_rates(copy_bytes: int) -> dict[str, float]:
    """GB/s of plain pinned copies in each direction; the engine can't be faster."""
    import torch

    host = torch.empty(copy_bytes, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(copy_bytes, dtype=torch.uint8, device="cuda")
    rates = {}
    for name, to, source in (("to_host", host, device), ("from_host", device, host)):
        seconds = []
        for _ in range(8):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            to.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begun)
        rates[name] = copy_bytes / statistics.median(seconds) / 1e9
    return rates


def engine_rates(copy_bytes: int) -> dict[str, float]:
    """GB/s of the engine in each direction, from the time that its transfers add to forward and backward.

    The blocks save `copy_bytes` each and compute almost nothing, and every transfer is waited for.
    """
    import torch

    import memscale

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones((), device="cuda"))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sin(x) * self.scale

    def pass_times(model: torch.nn.Module, x: torch.Tensor) -> tuple[float, float]:
        forward, backward = [], []
        for _ in range(6):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            loss = model(x).sum()
            torch.cuda.synchronize()
            middle = time.perf_counter()
            loss.backward()
            torch.cuda.synchronize()
            forward.append(middle - begun)
            backward.append(time.perf_counter() - middle)
        return statistics.median(forward[2:]), statistics.median(backward[2:])

    model = torch.nn.Sequential(*[Block() for _ in range(8)])
    x = torch.randn(copy_bytes // 4, device="cuda", requires_grad=True)
    plain = pass_times(model, x)
    config = memscale.Config(enable_checkpointing=False, force_optimize=True, enable_logging=False)
    memscale.wrap(model, config, async_offload=False)
    before = model._memscale_executor.counters()
    waited = pass_times(model, x)
    after = model._memscale_executor.counters()
    memscale.detach(model)
    stored = (after["offloaded_bytes"] - before["offloaded_bytes"]) / 6
    fetched = (after["fetched_bytes"] - before["fetched_bytes"]) / 6
    moved = (("to_host", stored, waited[0] - plain[0]), ("from_host", fetched, waited[1] - plain[1]))
    return {way: moved_bytes / seconds / 1e9 for way, moved_bytes, seconds in moved if seconds > 0}


def measured_rates(_: int) -> dict[str, Any]:
    """The rates that memscale measured for its plans."""
    import torch

    import memscale

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()).cuda()
    plan = memscale.plan(model, torch.randn(4, 8, device="cuda"), memscale.Config(force_optimize=True))
    return dict(json.loads(plan._hardware)["gpus"][0])


# ---- processes ----------------------------------------------------------------------------------------------------


def child(arguments: list[str], left_s: float) -> list[dict[str, Any]]:
    """Runs this file in a process of its own for `left_s` at most; returns what it told, its error at the end."""
    with tempfile.NamedTemporaryFile("r") as told:
        command = [sys.executable, os.path.abspath(__file__), "--child", told.name, *arguments]
        failure: dict[str, Any] | None = None
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=max(left_s, 1))
            if done.returncode != 0:
                last_line = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
                failure = {"error": last_line, "traceback": done.stderr[-TRACEBACK_CHARACTERS:]}
        except subprocess.TimeoutExpired:
            failure = {"error": "not run: the time is over"}
        answers: list[dict[str, Any]] = [json.loads(line) for line in told.read().splitlines()]
    return answers if failure is None else [*answers, failure]


def answer(place: str, arguments: list[str]) -> None:
    """The child's side: carries out one request."""

    def tell(what: dict[str, Any]) -> None:
        with open(place, "a", encoding="utf-8") as file:
            file.write(json.dumps(what) + "\n")

    if arguments[0] == "train":
        runs_of(arguments[1], arguments[2] == "small", [run for run in arguments[3].split(",") if run], tell)
    else:
        measure_part = {"copies": copy_rates, "engine": engine_rates, "rates": measured_rates}[arguments[0]]
        tell(measure_part(SMALL_COPY_BYTES if arguments[1] == "small" else COPY_BYTES))


def compared(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """The runs of one model by variant. `same` and `step_ratio` compare them with the unmodified run."""
    runs = {told["variant"]: told["run"] for told in answers if "variant" in told}
    plain = runs.get("unmodified", {})
    for variant, run in runs.items():
        if "error" not in run and "error" not in plain and variant != "unmodified":
            pairs = zip(run["digests"], plain["digests"], strict=True)
            run["same"] = all(mine in ("", theirs) for mine, theirs in pairs)  # "": its gradients were released
            run["step_ratio"] = run["step_s"] / plain["step_s"]
    if answers and "error" in answers[-1]:
        runs["the rest"] = answers[-1]
    return runs


# ---- compiled layers ----------------------------------------------------------------------------------------------


def compiled_rows(is_small: bool, left_s: float) -> dict[str, Any]:
    """The rows of bench/compiled.py on the card, their table, and a line for each missed goal."""
    sizes = SMALL_COMPILED_SIZES if is_small else COMPILED_SIZES
    program = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "compiled.py")
    failure = "it failed"
    with tempfile.NamedTemporaryFile("r") as told:
        options = ["--device=cuda", f"--json={told.name}", *(f"--{name}={size}" for name, size in sizes.items())]
        try:
            subprocess.run([sys.executable, program, *options], check=False, timeout=max(left_s, 1))
        except subprocess.TimeoutExpired:
            failure = "not run: the time is over"
        text = told.read()
    return dict(json.loads(text)) if text else {"rows": {}, "table": [], "missed": [failure]}


# ---- the results --------------------------------------------------------------------------------------------------


def error_of(run: dict[str, Any]) -> float:
    """The error of the predicted peak, as a share of the measured peak of settled steps."""
    return float(abs(run["predicted_bytes"] - run["settled_peak_bytes"]) / run["settled_peak_bytes"])


def misses_of(name: str, runs: dict[str, Any]) -> list[str]:
    """A line for each goal that a model's wrapped runs miss. A budget that no plan fits misses none."""
    missed = []
    repeats = runs.get("unmodified again", {}).get("same", True)
    for variant, run in runs.items():
        where = f"{name}, {variant}"
        if variant not in WRAPPED | FULL_TUNING and variant not in ("unmodified", "the rest"):
            continue
        if "error" in run:
            missed += [] if "BudgetInfeasibleError" in run["error"] else [f"{where}: {run['error']}"]
            continue
        if variant == "unmodified":
            continue
        missed += [f"{where}: gradients differ"] if repeats and not run["same"] else []
        budget = run.get("budget_bytes")
        missed += [f"{where}: over its budget"] if budget is not None and run["peak_bytes"] > budget else []
        if variant == "offload" and name == models.LARGE and run["step_ratio"] > OFFLOAD_RATIO:
            missed.append(f"{where}: {run['step_ratio']:.3f} times the unmodified step")
    return missed


def missed_goals(found: dict[str, dict[str, Any]]) -> list[str]:
    """A line for each missed goal."""
    missed, errors = [], []
    for name, runs in found.items():
        missed += misses_of(name, runs)
        errors += [(error_of(run), f"{name}, {variant}") for variant, run in runs.items() if run.get("predicted_bytes")]
    if errors and max(errors)[0] > WORST_ERROR:
        missed.append(f"{max(errors)[1]}: the peak is {max(errors)[0]:.1%} off its prediction")
    if errors and statistics.median(error for error, _ in errors) > MEDIAN_ERROR:
        missed.append("predicted peaks are off by more than 3% at the median")
    return missed


def row_of(name: str, variant: str, run: dict[str, Any]) -> str:
    """A line of the table."""
    if "error" in run:
        return f"| {name} | {variant} | {run['error'].replace('|', '/')} | | | | | |"
    same = {True: "yes", False: "NO", None: ""}[run.get("same")]
    predicted = f"{run['predicted_bytes'] / 1e9:.3f}" if run.get("predicted_bytes") else ""
    moved = run.get("counters", {}).get("offloaded_bytes", 0) / STEPS / 1e9
    return (
        f"| {name} | {variant} | {same} | {run['peak_bytes'] / 1e9:.3f} | {run['reserved_bytes'] / 1e9:.3f} "
        f"| {predicted} | {moved:.2f} | {run.get('step_ratio', 1.0):.3f} |"
    )


def page(found: dict[str, Any]) -> str:
    """The page of Markdown."""
    lines = [
        f"# Training under budgets on {found['gpu']}",
        "",
        f"torch {found['torch']}, transformers {found['transformers']}, memscale {found['memscale']}. Each run has "
        f"{STEPS} steps under autocast to BF16. 'same' says whether every bit of every gradient in every step equals "
        "the unmodified run's. Percentages are budgets, as shares of the unmodified peak.",
        "",
        "| direction | pinned copy GB/s | engine GB/s |",
        "|---|---|---|",
    ]
    for way in ("to_host", "from_host"):
        shown = [f"{found[part][way]:.1f}" if way in found[part] else "" for part in ("copies", "engine")]
        lines.append(f"| {way} | {shown[0]} | {shown[1]} |")
    lines += ["", "| model | run | same | peak GB | reserved GB | predicted GB | moved GB a step | step ratio |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for name, runs in found["models"].items():
        lines += [row_of(name, variant, run) for variant, run in runs.items()]
        share = runs.get("offload", {}).get("overlapped_share")
        if share is not None:
            lines.append(f"| {name} | offload: copies beside kernels | {share:.0%} | | | | | |")
    if found["compiled"]:
        lines += ["", "Layers compiled one by one, times as ratios to the first row's (bench/compiled.py):", ""]
        lines += found["compiled"]["table"]
    lines += ["", "Missed:" if found["missed"] else "All goals were met.", ""]
    return "\n".join(lines + [f"- {line}" for line in found["missed"]]).rstrip() + "\n"


def measure(names: list[str], is_small: bool, runs: str, limit_s: float) -> dict[str, Any]:
    """Makes all measurements, within about `limit_s`."""
    import importlib.metadata

    import torch

    ends = time.monotonic() + limit_s
    size = "small" if is_small else "full"
    parts = {
        part: {key: value for told in child([part, size], ends - time.monotonic()) for key, value in told.items()}
        for part in ("copies", "rates", "engine")
    }
    found, compiled = {}, {}
    for name in names:
        left_s = ends - time.monotonic()
        if name == COMPILED:
            compiled = compiled_rows(is_small, left_s)
            continue
        share = LARGE_SHARE if name == models.LARGE and len(names) > 1 else 1.0
        found[name] = compared(child(["train", name, size, runs], share * left_s))
    missed = [f"{part}: {told['error']}" for part, told in parts.items() if "error" in told] + missed_goals(found)
    missed += [f"{COMPILED}: {line}" for line in compiled.get("missed", [])]
    return {
        "gpu": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "transformers": importlib.metadata.version("transformers"),
        "memscale": importlib.metadata.version("memscale"),
        **parts,
        "models": found,
        "compiled": compiled,
        "missed": missed,
    }


def main(arguments: list[str]) -> int:
    """Writes RESULTS.json and RESULTS.md. Returns 1 if a goal was missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("results")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--models", default=",".join([models.LARGE, *models.NAMES]))
    parser.add_argument("--runs", default="", help="only these runs, and the unmodified one (default: all)")
    parser.add_argument("--limit", type=float, default=LIMIT_S)
    given = parser.parse_args(arguments)
    found = measure(given.models.split(","), given.small, given.runs, given.limit)
    text = page(found)
    for ending, content in ((".json", json.dumps(found, indent=1) + "\n"), (".md", text)):
        with open(given.results + ending, "w", encoding="utf-8") as file:
            file.write(content)
    print(text)
    return 1 if found["missed"] else 0


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        answer(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main(sys.argv[1:]))
