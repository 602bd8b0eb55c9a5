"""Prints the line of a run: its last loss, and for a wrapped model the memory before and after."""


def tell(title, loss, model=None):
    """The memory before is the plan's prediction for the unmodified step; the memory after is the measured peak."""
    line = f"{title:<9} loss {float(loss):.6f}"
    executor = getattr(model, "_memscale_executor", None)
    if executor is not None:
        peak_bytes = executor.take_peak_bytes()
        line += f"  unmodified {executor.plan.unoptimized_peak_bytes / 1e6:.0f} MB"
        line += f"  now {peak_bytes / 1e6:.0f} MB" if peak_bytes is not None else ""
    print(line, flush=True)
