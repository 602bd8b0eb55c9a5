// The charts of a run: its steps from the API, then those that come while it trains, from its stream of events.
"use strict";
(() => {
  const memory = document.getElementById("memory");
  const time = document.getElementById("time");
  if (!memory || typeof uPlot === "undefined") return;
  const run = memory.dataset.run;
  const points = 1200;
  const shown_steps = document.getElementById("steps");
  // Asked at each drawing: the page may turn dark while someone looks at it.
  const colour = (name) => () => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const text = colour("--text");
  const line = colour("--line");
  const gigabytes = (bytes) => (bytes === null ? null : bytes / 1e9);
  const seconds = (ns) => (ns === null ? null : ns / 1e9);

  const axes = (unit) => [
    { stroke: text, grid: { stroke: line, width: 0.5 }, label: "step" },
    { stroke: text, grid: { stroke: line, width: 0.5 }, label: unit, size: 70 },
  ];
  const series = (label, stroke, dash) => ({ label, stroke: colour(stroke), width: 1.5, dash, points: { show: false }, spanGaps: true });
  const make = (where, unit, lines) =>
    new uPlot(
      { width: where.clientWidth, height: 260, scales: { x: { time: false } }, axes: axes(unit), series: [{ label: "step" }, ...lines] },
      [[], ...lines.map(() => [])],
      where,
    );
  const memoryChart = make(memory, "GB", [
    series("peak", "--peak"), series("resident", "--resident"), series("predicted peak", "--predicted", [6, 4]), series("budget", "--budget", [2, 3]),
  ]);
  const timeChart = make(time, "s", [series("step", "--peak"), series("predicted", "--predicted", [6, 4])]);
  const names = ["step", "peak_bytes", "resident_bytes", "predicted_peak_bytes", "budget_bytes", "step_ns", "predicted_step_ns"];
  let columns = Object.fromEntries(names.map((name) => [name, []]));
  let sequence = 0;

  const draw = () => {
    memoryChart.setData([columns.step, ...names.slice(1, 5).map((name) => columns[name].map(gigabytes))]);
    timeChart.setData([columns.step, columns.step_ns.map(seconds), columns.predicted_step_ns.map(seconds)]);
    const last = columns.step.at(-1);
    memory.setAttribute("aria-label", `Memory over ${last ?? 0} steps`);
  };
  memory.setAttribute("role", "img");
  time.setAttribute("role", "img");
  time.setAttribute("aria-label", "Time over steps");

  const load = async () => {
    const answer = await fetch(`/api/v1/runs/${run}/steps?points=${points}`);
    if (!answer.ok) return;
    const page = await answer.json();
    if (memory.dataset.live && !page.is_running) return location.reload(); // it ended while nobody could tell us
    columns = page.columns;
    sequence = page.last_sequence;
    if (shown_steps) shown_steps.textContent = page.step_count;
    draw();
  };
  const add = (event) => {
    if (event.finished) return location.reload();
    if (event.sequence <= sequence) return;
    // A gap, or more points than are drawn: what is there is thinned by the server.
    if (!event.columns || event.sequence !== sequence + 1 || columns.step.length > 2 * points) return load();
    sequence = event.sequence;
    if (shown_steps) shown_steps.textContent = event.step_count;
    for (const name of names) columns[name].push(...event.columns[name]);
    draw();
  };
  const watch = () => {
    const source = new EventSource(`/api/v1/runs/${run}/events`);
    source.onopen = load;
    source.onmessage = (message) => add(JSON.parse(message.data));
    source.addEventListener("reload", load);
    // A browser comes back by itself after a lost connection, but not after a refusal of the proxy or of a limit.
    source.onerror = () => {
      if (source.readyState === EventSource.CLOSED) setTimeout(watch, 5000);
    };
  };
  if (memory.dataset.live) watch();
  else load();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    memoryChart.redraw();
    timeChart.redraw();
  });
  addEventListener("resize", () => {
    memoryChart.setSize({ width: memory.clientWidth, height: 260 });
    timeChart.setSize({ width: time.clientWidth, height: 260 });
  });
})();
