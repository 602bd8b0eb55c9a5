"""Runs each loop twice, unwrapped and wrapped, each time in a process of its own. Prints a line for each loop.

Exits with status 1 if a loop broke a promise. Called by scripts/loops.sh.
"""

from __future__ import annotations

import argparse
import sys

from frame import MEGABYTE, Loop, all_loops, complaints, run_apart


def _tell(chosen: Loop) -> bool:
    """Runs one loop and prints its line; returns whether it kept every promise."""
    plain, wrapped = run_apart(chosen.name, False), run_apart(chosen.name, True)
    found = complaints(chosen, plain, wrapped)
    room = [(number - wrapped.base_bytes) / MEGABYTE for number in (wrapped.peak_bytes, wrapped.budget_bytes)]
    unwrapped = (plain.peak_bytes - plain.base_bytes) / MEGABYTE
    print(
        f"{chosen.name:20} {unwrapped:7.0f} MB unwrapped {room[0]:7.0f} of {room[1]:5.0f} MB "
        f"{wrapped.plans:3} plans {len(wrapped.told):3} lines  {'; '.join(found) or 'kept'}",
        flush=True,
    )
    return not found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="loops to run; default: all")
    wanted = parser.parse_args().names
    loops = [chosen for name, chosen in all_loops().items() if not wanted or name in wanted]
    kept = [_tell(chosen) for chosen in loops]
    print(f"{sum(kept)} of {len(kept)} loops kept their promises")
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
