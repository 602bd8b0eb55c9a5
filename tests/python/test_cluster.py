"""`memscale predict --ranks` beside what real ranks take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

CONFIG = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 8000,
    "tie_word_embeddings": False,
}
PROGRAM = Path(sys.executable).with_name("memscale")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(CONFIG), encoding="utf-8")
    return path


def predicted(config: Path, *options: str) -> dict[str, Any]:
    command = [PROGRAM, "predict", "--hf", config, "--batch", "2", "--seq", "128", "--json", *options]
    answer: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return answer


def peak_bytes(config: Path, *options: str) -> int:
    return int(predicted(config, *options)["plan"]["unoptimized"]["peak_bytes"])


def measured_bytes(config: Path, folder: Path, ranks: int, how: str) -> int:
    case = Path(__file__).with_name("cluster_case.py")
    # Freed memory goes back at once, as under memscale, whose peaks are predicted.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
    command = [sys.executable, case, str(ranks), how, config.parent, folder / how]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=600)
    return int(done.stdout.split()[-1])


def test_a_rank_takes_what_is_predicted(config: Path, tmp_path: Path) -> None:
    alone = measured_bytes(config, tmp_path, 1, "alone")
    apart = alone - peak_bytes(config)  # the process of the prediction, which is not measured
    ddp = measured_bytes(config, tmp_path, 2, "ddp")
    assert peak_bytes(config, "--ranks", "2", "--ddp") + apart == pytest.approx(ddp, rel=0.05)
    fsdp = measured_bytes(config, tmp_path, 2, "fsdp")
    bound = peak_bytes(config, "--ranks", "2", "--fsdp") + apart
    assert 0.97 * fsdp < bound < 1.2 * fsdp


def test_the_document_names_the_share(config: Path) -> None:
    document = predicted(config, "--ranks", "16", "--fsdp", "--hardware", "h100")
    share = document["cluster"]
    assert share["ranks"] == 16 and share["parallelism"] == "fsdp"
    assert share["exchange_ns"] == pytest.approx(share["sent_bytes"] / share["link_bytes_per_s"] * 1e9, abs=1)
    assert document["parameter_bytes"] * 16 == pytest.approx(predicted(config)["parameter_bytes"], rel=1e-6)
