"""The report is complete HTML that loads nothing and shows plan and measurements. If a browser is installed, it
renders the page."""

from __future__ import annotations

import html
import html.parser
import io
import json
import pathlib
import re
import shutil
import subprocess

import pytest
import torch
from time_limits import HANG_SECONDS
from torch import nn

import memscale
from memscale import Config

_VOID = {"meta", "br", "img", "link", "hr", "input"}


class _Checker(html.parser.HTMLParser):
    """Checks that tags are nested properly and that the page loads nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.titles: list[str] = []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        assert tag not in ("link", "iframe", "img"), tag
        assert not {"src", "href", "srcset", "xlink:href"} & values.keys()
        assert "url(" not in (values.get("style") or "")
        self.tags.append(tag)
        if "title" in values:
            self.titles.append(values["title"])
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()


class Net_with_a_name(nn.Sequential):
    pass


def _trained(steps: int = 3) -> nn.Module:
    torch.manual_seed(0)
    model = Net_with_a_name(*[nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(6)])
    Net_with_a_name.__name__ = "Net<b>&co"
    model = memscale.wrap(model, Config(force_optimize=True, enable_logging=False))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.ones(1024, 512)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    model = _trained()
    model._memscale_executor.report(str(path))
    memscale.detach(model)
    return path


def test_the_page_is_whole_and_loads_nothing(page: pathlib.Path) -> None:
    text = page.read_text()
    checker = _Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    assert not re.search(r"https?:|@import|url\(", text)
    assert checker.tags.count("svg") >= 2
    assert "memscale: Net&lt;b&gt;&amp;co" in text


def test_every_layer_has_its_cell_and_every_comparison_its_row(page: pathlib.Path) -> None:
    text = page.read_text()
    checker = _Checker()
    checker.feed(text)
    assert sum(title.startswith(("0: ", "1: ", "2: ", "3: ", "4: ", "5: ")) for title in checker.titles) == 6
    [peak] = re.findall(r"<tr><td>peak</td><td>([\d.]+ .B)</td><td>([\d.]+ .B)</td><td>[+-]", text)
    assert all(float(value.split()[0]) > 0 for value in peak)
    assert re.search(r"<tr><td>step</td><td>[\d.]+ .?s</td><td>[\d.]+ .?s</td>", text)
    for title in ("Memory within a step", "Memory over the run", "Layers", "Transfers", "Counters", "budget or target"):
        assert title in text
    assert "<td>steps</td><td>3</td>" in text


def test_a_report_before_the_first_step_says_so(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "report.html"
    model = memscale.wrap(nn.Linear(4, 4), Config(enable_logging=False))
    model._memscale_executor.report(str(path))
    assert "There is no plan yet" in path.read_text()
    memscale.wrap(model, Config(enable_logging=False, force_optimize=True), sample_input=torch.ones(2, 4))
    model._memscale_executor.report(str(path))
    assert "No step has been measured yet" in path.read_text()
    memscale.detach(model)
    with pytest.raises(OSError, match="No such file"):
        memscale.wrap(model, Config(enable_logging=False))._memscale_executor.report(str(tmp_path / "no" / "x.html"))
    memscale.detach(model)


def test_a_browser_draws_it(page: pathlib.Path, tmp_path: pathlib.Path) -> None:
    names = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome", "chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        pytest.skip("no Chromium on the PATH (Debian package chromium); the structure was checked without it")
    picture = tmp_path / "report.png"
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--window-size=1000,2200",
        "--dump-dom",
    ]
    drawn = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert drawn.returncode == 0, drawn.stderr[-2000:]
    assert drawn.stdout.count("<canvas") == 3  # within the step, its lanes, over the run
    assert "<svg" not in drawn.stdout
    command[-1] = f"--screenshot={picture}"
    subprocess.run([*command, page.as_uri()], capture_output=True, timeout=HANG_SECONDS, check=True)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000, "the picture is nearly empty"


def test_the_keyboard_moves_along_the_chart(page: pathlib.Path, tmp_path: pathlib.Path) -> None:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-headless-shell"))), None)
    if browser is None:
        pytest.skip("no Chromium on the PATH (Debian package chromium)")
    presses = """<script>
        const chart = document.querySelector("#step-memory .chart"), said = [];
        for (const key of ["Home", "ArrowRight", "ArrowRight", "ArrowLeft", "End"]) {
          chart.dispatchEvent(new KeyboardEvent("keydown", { key }));
          said.push(document.querySelector("#step-memory .reading span").textContent);
        }
        document.title = JSON.stringify(said);
    </script></body>"""
    pressed = tmp_path / "pressed.html"
    pressed.write_text(page.read_text().replace("</body>", presses))
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", pressed.as_uri()]
    drawn = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=True)
    title = re.search(r"<title>(.*?)</title>", drawn.stdout)
    assert title is not None
    first, second, third, back, last = json.loads(html.unescape(title.group(1)))
    assert "forward of 0 (" in first and "forward of 1 (" in second and "forward of 2 (" in third
    assert back == second and "backward of 0 (" in last


def test_ticks_are_round_and_without_zeros_at_their_ends(page: pathlib.Path) -> None:
    [picture, *_] = re.findall(r"<svg.*?</svg>", page.read_text(), re.DOTALL)
    ticks = re.findall(r'text-anchor="end">([\d.]+) (\w+)</text>', picture)
    times = re.findall(r'text-anchor="middle">([\d.]+) (.?s)</text>', picture)
    for marks in (ticks[1:], times[1:]):
        assert 2 <= len(marks) <= 6 and all(re.fullmatch(r"\d+(\.\d*[1-9])?", number) for number, _ in marks), marks
        assert float(marks[0][0]).__format__("e")[0] in "125", marks


def test_the_numbers_of_the_charts_add_up(page: pathlib.Path) -> None:
    [text] = re.findall(r'<script type="application/json" id="numbers">(.*?)</script>', page.read_text(), re.DOTALL)
    numbers = json.loads(text)
    count = len(numbers["at_ns"])
    owners = [numbers[f"owner_{i}"] for i in range(len(numbers["owners"]))]
    assert count == 2 * len(numbers["layers"]) == len(numbers["plain_bytes"])
    totals = [sum(of[k] for of in owners) for k in range(count)]
    assert max(totals) <= numbers["predicted_bytes"] < numbers["budget_bytes"]
    layers = owners[numbers["owners"].index("saved by layers")]
    assert max(layers) > layers[-1] == 0 and numbers["at_ns"] == sorted(numbers["at_ns"])
    assert numbers["recompute_ns"][-1] > numbers["recompute_ns"][0] == 0
    assert numbers["step"] == [1, 2, 3]


def test_the_licence_of_the_chart_library_is_in_the_page(page: pathlib.Path) -> None:
    assert "The MIT License" in page.read_text() and "Leon Sorokin" in page.read_text()


def test_progress_is_one_line_rewritten_on_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, plain, closed = Terminal(), io.StringIO(), io.StringIO()
    closed.close()
    for stream in (terminal, plain, closed):
        model = memscale.wrap(nn.Sequential(nn.Linear(8, 8)), Config(force_optimize=True, enable_logging=False))
        model._memscale_executor.show_progress(stream)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
        memscale.detach(model)
    assert terminal.getvalue().count("\r\x1b[K") == 3
    assert re.search(r"step 3  [\d.]+ .?s \([\d.]+ .?s planned\)  peak [\d.]+ .B of", terminal.getvalue())
    assert terminal.getvalue().endswith("\n")
    assert plain.getvalue().count("\n") == 1
