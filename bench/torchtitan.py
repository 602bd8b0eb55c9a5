"""torchtitan's published figures of Llama 3 and 3.1 beside what `memscale predict` says of the same shapes.

`python bench/torchtitan.py` prints two tables in Markdown, of memory and of tokens per second. C alone answers; nothing
is trained. Where the figures come from, and why they differ, is told in docs/results/README.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

PROGRAM = Path(sys.executable).with_name("memscale")
TOKENS = 8192

# Width, width of the MLP, layers, heads.
MODELS = {"8B": (4096, 14336, 32, 32), "70B": (8192, 28672, 80, 64), "405B": (16384, 53248, 126, 128)}

SELECTIVE = "--technique selective_3"
FULL = "--technique recompute"


class Row(NamedTuple):
    """A published shape; `batch` sequences for each copy of the model. Texts of what was published, as it was."""

    model: str
    gpus: int
    card: str
    batch: int
    options: str
    memory_gib: str
    tokens_per_s: str


ROWS = (
    Row("8B", 64, "a100-80gb", 1, SELECTIVE, "", "2973"),
    Row("70B", 64, "a100-80gb", 1, FULL, "", "331"),
    Row("8B", 8, "h100", 2, SELECTIVE, "82.4; compiled 77.0", "5762; compiled 6667"),
    Row("8B", 128, "h100", 2, SELECTIVE, "67.0; compiled 62.0", "5605; compiled 6514"),
    Row("405B", 128, "h100", 2, f"--tp 8 --sp {FULL}", "", "109"),
    Row("70B", 256, "h100", 16, f"--tp 8 --sp {FULL}", "71.9; 67.6", "829; 876"),
    Row("405B", 512, "h100", 32, f"--tp 8 --sp --pp 8 --microbatches 8 {FULL}", "82.5", "100"),
)


def config_of(model: str) -> dict[str, Any]:
    width, inner, layers, heads = MODELS[model]
    return {
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "tie_word_embeddings": False,
    }


def predicted(row: Row, folder: Path) -> dict[str, Any]:
    path = folder / f"{row.model}.json"
    path.write_text(json.dumps(config_of(row.model)), encoding="utf-8")
    options = (
        f"--ranks {row.gpus} --fsdp --mixed --batch {row.batch} --seq {TOKENS} --hardware {row.card} {row.options}"
    )
    command = [PROGRAM, "predict", "--hf", path, "--json", *options.split()]
    answer: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
    return answer


def main() -> None:
    memory, speed = [], []
    with tempfile.TemporaryDirectory() as folder:
        for row in ROWS:
            answer = predicted(row, Path(folder))
            cluster = answer["cluster"]
            peak_bytes = answer.get("settled", answer["plan"]["predicted"])["peak_bytes"]
            tokens = row.batch * TOKENS * cluster["copies"] / row.gpus
            least, most = (tokens / cluster[name] * 1e9 for name in ("exposed_step_ns", "step_ns"))
            shape = f"| {row.model}, {row.gpus} {row.card} | `--batch {row.batch} {row.options}` |"
            if row.memory_gib:
                memory.append(f"{shape} {row.memory_gib} | {peak_bytes / 2**30:.1f} |")
            speed.append(f"{shape} {row.tokens_per_s} | {least:.0f} to {most:.0f} |")
    for title, lines in (("GiB", memory), ("tokens/s and GPU", speed)):
        print(f"| model, GPUs | options | torchtitan, {title} | predicted |", "|---|---|---|---|", *lines, "", sep="\n")


if __name__ == "__main__":
    main()
