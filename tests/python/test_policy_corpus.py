"""The corpus of the trained policy: the same seed gives the same bytes, a damaged part is made again, and training and
export give the library's own predictions."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

from memscale import _core
from memscale.policy import corpus, scenarios, seal_policy
from memscale.policy.chains import KINDS, chain_graph

ROOT = Path(__file__).resolve().parents[2]
ROWS = 4


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    corpus.make_corpus(folder, seed=5, rows=ROWS, processes=1)
    return folder


def test_the_same_seed_gives_the_same_bytes(made: Path, tmp_path: Path) -> None:
    again = corpus.make_corpus(tmp_path, seed=5, rows=ROWS, processes=2)
    names = sorted(path.name for path in made.iterdir())
    assert names == sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", "part-00000.jsonl"]
    for name in names:
        assert (made / name).read_bytes() == (tmp_path / name).read_bytes()
    assert again == json.loads((made / "manifest.json").read_text())
    assert corpus.row_of(5, 0) != corpus.row_of(6, 0)


def test_every_row_names_its_graph_and_its_seed(made: Path) -> None:
    rows = list(corpus.read_rows(made))
    features, strategies = _core.policy_tables()
    assert [(row["seed"], row["index"]) for row in rows] == [(5, i) for i in range(ROWS)]
    for row in rows:
        assert len(row["graph"]) == 16
        assert len(row["context"]) == len(features)
        assert len(row["outcomes"]) == len(strategies)


@pytest.mark.parametrize("harm", ["cut", "changed", "other_seed", "empty"])
def test_a_damaged_part_is_found_and_made_again(
    made: Path, tmp_path: Path, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = (made / "part-00000.jsonl").read_bytes()
    harmed = {
        "cut": whole[:-200],
        "changed": whole.replace(b'"ranks": ', b'"ranks": 1', 1),
        "other_seed": whole,
        "empty": b"",
    }[harm]
    (tmp_path / "part-00000.jsonl").write_bytes(harmed)
    if harm != "other_seed":
        with pytest.raises(ValueError, match="part-00000.jsonl: damaged"):
            list(corpus.read_rows(tmp_path))
    jobs: list[tuple[str, int, int, int]] = []
    monkeypatch.setattr(corpus, "_by_processes", lambda found, _: iter([jobs.append(job) or 0 for job in found]))
    with pytest.raises(ValueError) if harm != "other_seed" else contextlib.nullcontext():
        corpus.make_corpus(tmp_path, seed=6 if harm == "other_seed" else 5, rows=ROWS, processes=1)
    assert jobs == [(str(tmp_path), 6 if harm == "other_seed" else 5, 0, ROWS)]


def test_what_is_whole_is_not_made_again(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(jobs: list[object], _: int) -> object:
        assert jobs == []
        return iter(())

    monkeypatch.setattr(corpus, "_by_processes", fail)
    corpus.make_corpus(made, seed=5, rows=ROWS, processes=1)


@pytest.mark.parametrize("kind", KINDS)
def test_chains_are_sound_graphs(kind: str) -> None:
    for seed in range(10):
        graph = chain_graph(kind, random.Random(seed))
        _core.graph_check(graph)
        assert graph == chain_graph(kind, random.Random(seed))


def test_every_family_and_class_is_drawn() -> None:
    drawn = [scenarios.draw(number) for number in range(150)]
    assert {one.family for one in drawn} == set(scenarios.FAMILIES)
    assert {one.hardware_class for one in drawn} == set(scenarios.CLASSES)
    assert {one.ranks for one in drawn} >= {1, 2, 4, 8}


def _drawn_rows() -> Any:
    """Rows as a corpus has them, with features and costs drawn at random: enough of them for trees with splits."""
    np = pytest.importorskip("numpy")
    from memscale.policy import training

    rng, count, listed = np.random.default_rng(3), 300, training.actions()
    contexts = rng.integers(0, 2000, (count, len(_core.policy_tables()[0]))).astype(float)
    fits = rng.random((count, len(listed))) < 0.95
    slope = contexts[:, :1] * contexts[:, 2:3] / 4e7
    regret = slope * rng.random(len(listed)) + rng.random((count, len(listed))) / 50
    families = rng.choice(["llama", "gpt2", "bert"], count)
    rows = [{"family": str(family)} for family in families]
    work = rng.random((count, len(listed)))
    return training.Rows(rows, listed, contexts, fits, regret, work, rng.random(count) < 0.2)


def test_the_export_gives_the_librarys_own_predictions() -> None:
    pytest.importorskip("lightgbm", reason="training is an extra")
    from memscale.policy import training

    rows = _drawn_rows()
    trained = training.train(rows, "small", most_trees=8)
    body = json.loads(trained.artifact)["policy"]
    assert any(len(tree["nodes"]) > 1 for tree in body["trees"])
    assert training.check_equal(rows, trained) == len(rows.rows) * len(trained.chosen)
    assert training.train(rows, "small", most_trees=8).artifact == trained.artifact
    leaf = next(node for node in body["trees"][-1]["nodes"] if len(node) == 1)
    leaf[0] += 1
    changed = training.Trained(seal_policy(json.dumps(body)), trained.boosters, trained.chosen, trained.used)
    with pytest.raises(ValueError, match="differ"):
        training.check_equal(rows, changed)


def test_training_on_a_small_corpus_gives_an_artifact(made: Path) -> None:
    pytest.importorskip("lightgbm", reason="training is an extra")
    from memscale.policy import evaluation, training

    rows = training.load_rows(made)
    trained = training.train(rows, "tiny", most_trees=2)
    path = made / "policy.json"
    path.write_text(trained.artifact)
    choices = evaluation.choices_of(rows, path)
    everyone = rows.fits[:, 0] | True
    oracle = evaluation.figures(rows, choices["oracle"], everyone)
    assert all(evaluation.figures(rows, choice, everyone)["regret"] >= oracle["regret"] for choice in choices.values())
    path.unlink()


def test_the_built_in_policy_is_the_one_of_the_manifest() -> None:
    manifest = json.loads((ROOT / "src/policy/manifest.json").read_text())
    features, strategies = _core.policy_tables()
    assert [tuple(row) for row in manifest["strategies"]] == strategies
    assert list(manifest["ranges"]) == features
    assert _core.policy_shipped() == (ROOT / "src/policy/shipped.json").read_text()
    for feature in json.loads(_core.policy_shipped())["policy"]["features"]:
        least, most = manifest["ranges"][feature["name"]]
        assert least <= feature["least"] <= feature["usual"] <= feature["most"] <= most
