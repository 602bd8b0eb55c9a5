// What another budget would buy: how far the frontier of a run is, then its chart. The page has a table of the same.
"use strict";
(() => {
  const progress = document.getElementById("frontier-progress");
  const where = document.getElementById("frontier-chart");
  const colour = (name) => () => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const wait_ms = 2000;

  const look = async () => {
    const answer = await fetch(`/api/v1/frontiers/${progress.dataset.job}`).catch(() => null);
    const job = answer && answer.ok ? await answer.json() : null;
    if (job && job.finished_at !== null) return location.reload();
    if (job) {
      progress.value = job.points_done;
      document.getElementById("frontier-done").textContent = job.points_done;
    }
    setTimeout(look, wait_ms);
  };
  const draw = async () => {
    const answer = await fetch(`/api/v1/frontiers/${where.dataset.job}/result`);
    if (!answer.ok) return;
    const points = (await answer.json()).points.toReversed(); // by rising budget, as the axis is
    const axis = (label) => ({ stroke: colour("--text"), grid: { stroke: colour("--line"), width: 0.5 }, label });
    const chart = new uPlot(
      {
        width: where.clientWidth, height: 260, scales: { x: { time: false } },
        axes: [axis("budget in GB"), { ...axis("predicted step time in s"), size: 70 }],
        series: [{ label: "budget" }, { label: "step", stroke: colour("--peak"), width: 1.5, points: { show: true } }],
      },
      [points.map((point) => point.budget_bytes / 1e9), points.map((point) => point.step_ns / 1e9)],
      where,
    );
    where.setAttribute("role", "img");
    where.setAttribute("aria-label", `Predicted step time of ${points.length} budgets`);
    addEventListener("resize", () => chart.setSize({ width: where.clientWidth, height: 260 }));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => chart.redraw());
  };
  if (progress) setTimeout(look, wait_ms);
  if (where && typeof uPlot !== "undefined") draw();
})();
