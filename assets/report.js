// The report's charts: memory within the step by owner, with what moves and what runs again below it, and memory over the
// run. The numbers are in the page; nothing is fetched.
"use strict";
(() => {
  const source = document.getElementById("numbers");
  if (!source || typeof uPlot === "undefined") return;
  const numbers = JSON.parse(source.textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const light = ["#9aa5b1", "#4c6a92", "#7f6aa8", "#c98a2b", "#2e8b6f", "#bf5b4b", "#6db3d6", "#d9dfe5"];
  const night = ["#6b7682", "#6f93c4", "#a390d1", "#dfa64f", "#4db891", "#dd8274", "#4f9cc4", "#39434d"];
  const palette = () => (dark.matches ? night : light);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // ---- texts ----
  const unit = (most, units) => units.find(([size]) => most >= size) ?? units.at(-1);
  const byteUnits = [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]];
  const timeUnits = [[1e9, "s"], [1e6, "ms"], [1e3, "\u00b5s"], [1, "ns"]];
  const text = (value, units) => {
    if (value === null || value === undefined) return "-";
    const [size, name] = unit(value, units);
    return `${(value / size).toPrecision(3).replace(/\.?0+$/, (end) => (end.startsWith(".") ? "" : end))} ${name}`;
  };
  const bytes = (value) => text(value, byteUnits);
  const time = (value) => text(value, timeUnits);
  const ticks = (units) => (_, values) => {
    const [size, name] = unit(Math.max(...values), units);
    return values.map((value) => (value === 0 ? "0" : `${+(value / size).toPrecision(6)} ${name}`));
  };

  // ---- one chart ----
  const charts = [];
  const make = (figure, build, read, count, first) => {
    const picture = figure.querySelector(".picture");
    const box = document.createElement("div");
    box.className = "chart";
    box.tabIndex = 0;
    box.setAttribute("role", "application");
    box.setAttribute("aria-label", `${figure.querySelector("figcaption").textContent}; arrow keys move along it`);
    const reading = document.createElement("div");
    reading.className = "reading";
    reading.setAttribute("aria-live", "polite");
    const hint = document.createElement("p");
    hint.className = "hint";
    hint.textContent = "Point at the chart, or focus it and press the arrow keys, Home or End.";
    picture.replaceWith(box, reading, hint);
    let plots = [];
    let at = null;
    const show = (index) => {
      at = index ?? at ?? first;
      reading.replaceChildren(...read(at));
    };
    const draw = () => {
      for (const plot of plots) plot.destroy();
      plots = build(box, show);
    };
    const move = (index) => {
      const plot = plots[0];
      const place = Math.min(Math.max(index, 0), count - 1);
      plot.setCursor({ left: plot.valToPos(plot.data[0][place], "x"), top: 10 });
      show(place);
    };
    box.addEventListener("keydown", (event) => {
      const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: count - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      move(to);
    });
    draw();
    show(null);
    charts.push(draw);
  };
  const entry = (name, value, colour, outline) => {
    const span = document.createElement("span");
    if (colour) {
      const mark = document.createElement("i");
      mark.style.background = mark.style.borderColor = colour;
      if (outline) mark.className = "outline";
      span.append(mark);
    }
    const strong = document.createElement("b");
    strong.textContent = value;
    span.append(`${name} `, strong);
    return span;
  };
  const axis = (units, rest) => ({
    stroke: css("--text"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1 },
    values: units ? ticks(units) : undefined, ...rest,
  });
  const level = (value, colour) => (plot) => {
    const y = plot.valToPos(value, "y", true);
    if (y < plot.bbox.top) return;
    const ink = plot.ctx;
    ink.save();
    ink.strokeStyle = colour;
    ink.lineWidth = 2 * devicePixelRatio;
    ink.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
    ink.beginPath();
    ink.moveTo(plot.bbox.left, y);
    ink.lineTo(plot.bbox.left + plot.bbox.width, y);
    ink.stroke();
    ink.restore();
  };
  const limit = (most) => (numbers.budget_bytes <= 1.6 * most ? Math.max(most, numbers.budget_bytes) : most) * 1.06;
  const limitName = numbers.budget_given ? "budget" : "target";
  const left = 76;

  // ---- within the step ----
  const stepFigure = document.getElementById("step-memory");
  if (stepFigure && numbers.at_ns) {
    const at = numbers.at_ns;
    const n = at.length;
    const owners = numbers.owners.map((_, i) => numbers[`owner_${i}`]);
    const used = owners.map((_, i) => i).filter((i) => owners[i].some((value) => value > 0));
    // The unoptimized step on this time axis: its own samples, joined in.
    const last = Math.max(at[n - 1], numbers.plain_at_ns[n - 1]);
    const sums = [];
    for (const i of used) sums.push(owners[i].map((value, k) => value + (sums.at(-1)?.[k] ?? 0)));
    const joined = uPlot.join([[at, ...sums], [numbers.plain_at_ns, numbers.plain_bytes]]);
    const most = Math.max(...sums.at(-1), ...numbers.plain_bytes);
    const cache = owners.length - 1;
    const live = at.map((_, k) => owners.reduce((sum, of, i) => (i === cache ? sum : sum + of[k]), 0));
    const peak = live.indexOf(Math.max(...live));
    const nearest = (plot) => {
      const x = plot.posToVal(plot.cursor.left, "x");
      let best = 0;
      for (let k = 1; k < n; k++) if (Math.abs(at[k] - x) < Math.abs(at[best] - x)) best = k;
      return best;
    };
    const scale = { time: false, range: [0, last] };
    const lanes = [
      ["recompute", (k) => numbers.recompute_ns[k] > (numbers.recompute_ns[k - 1] ?? 0), 5],
      ["stored", (k) => numbers.lower_bytes[k] > (numbers.lower_bytes[k - 1] ?? 0), 1],
      ["fetched", (k) => numbers.lower_bytes[k] < (numbers.lower_bytes[k - 1] ?? 0), 4],
    ];
    const drawLanes = (plot) => {
      const ink = plot.ctx;
      const height = plot.bbox.height / lanes.length;
      ink.save();
      lanes.forEach(([, busy, colour], lane) => {
        ink.fillStyle = palette()[colour];
        for (let k = 0; k < n; k++) {
          if (!busy(k)) continue;
          const from = plot.valToPos(k > 0 ? at[k - 1] : 0, "x", true);
          ink.fillRect(from, plot.bbox.top + height * (lane + 0.2), Math.max(plot.valToPos(at[k], "x", true) - from, 1), height * 0.6);
        }
      });
      ink.restore();
    };
    make(stepFigure, (box, show) => {
      const colours = palette();
      const areas = used.map((owner) => ({
        label: numbers.owners[owner], stroke: colours[owner], width: 1, fill: colours[owner],
        points: { show: false }, spanGaps: true,
      }));
      const cursor = { sync: { key: "step" }, points: { show: false }, y: false, drag: { x: false, y: false } };
      const width = Math.max(box.clientWidth, 240);
      const memory = new uPlot({
        width, height: 320, legend: { show: false }, cursor, padding: [8, 12, 0, 0],
        scales: { x: scale, y: { range: [0, limit(most)] } },
        axes: [axis(timeUnits, {}), axis(byteUnits, { size: left })],
        series: [{}, ...areas, { label: "unoptimized", stroke: css("--plain"), width: 2, dash: [2, 3], points: { show: false }, spanGaps: true }],
        bands: areas.slice(1).map((_, i) => ({ series: [i + 2, i + 1] })),
        hooks: {
          draw: [level(numbers.budget_bytes, css("--budget"))],
          setCursor: [(plot) => plot.cursor.left >= 0 && show(nearest(plot))],
        },
      }, joined, box);
      const moves = new uPlot({
        width, height: 84, legend: { show: false }, cursor, padding: [2, 12, 0, 0],
        scales: { x: scale, y: { range: [0, lanes.length] } },
        axes: [{ ...axis(timeUnits, {}), show: false }, axis(null, {
          size: left, splits: () => lanes.map((_, i) => lanes.length - i - 0.5), values: () => lanes.map(([name]) => name),
          grid: { show: false }, ticks: { show: false }, font: "11px system-ui", gap: 4,
        })],
        series: [{}, { show: false }],
        hooks: { draw: [drawLanes], setCursor: [(plot) => plot.cursor.left >= 0 && show(nearest(plot))] },
      }, [at, at.map(() => 0)], box);
      return [memory, moves];
    }, (k) => {
      const colours = palette();
      const node = numbers.nodes[k];
      const moved = numbers.lower_bytes[k] - (numbers.lower_bytes[k - 1] ?? 0);
      const again = numbers.recompute_ns[k] - (numbers.recompute_ns[k - 1] ?? 0);
      let plain = 0;
      while (plain + 1 < n && numbers.plain_at_ns[plain + 1] <= at[k]) plain++;
      return [
        entry(`${time(at[k])}, ${2 * k < n ? "forward" : "backward"} of`, `${numbers.layers[node]} (${numbers.techniques[node]})`),
        entry("in all", bytes(owners.reduce((sum, of) => sum + of[k], 0))),
        ...[...used].reverse().map((i) => entry(numbers.owners[i], bytes(owners[i][k]), colours[i])),
        entry("unoptimized", bytes(numbers.plain_bytes[plain]), css("--plain"), true),
        entry(limitName, bytes(numbers.budget_bytes), css("--budget"), true),
        ...(moved ? [entry(moved > 0 ? "to the lower tier" : "from the lower tier", bytes(Math.abs(moved)))] : []),
        ...(again > 0 ? [entry("recomputed in", time(again))] : []),
      ];
    }, n, peak);
  }

  // ---- over the run ----
  const runFigure = document.getElementById("run-memory");
  if (runFigure && numbers.step) {
    const lines = [["peak of the step", "peak_bytes", 1], ["at the boundary", "resident_bytes", 0], ["lower tier", "tier_bytes", 4]];
    const most = Math.max(numbers.predicted_bytes, ...lines.flatMap(([, name]) => numbers[name].map((value) => value ?? 0)));
    make(runFigure, (box, show) => [new uPlot({
      width: Math.max(box.clientWidth, 240), height: 240, legend: { show: false }, padding: [8, 12, 0, 0],
      cursor: { y: false, drag: { x: false, y: false } },
      scales: { x: { time: false }, y: { range: [0, limit(most)] } },
      axes: [axis(null, { label: "step", labelSize: 18, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 1e5, 1e6, 1e7] }), axis(byteUnits, { size: left })],
      series: [{}, ...lines.map(([label, , colour]) => ({
        label, stroke: palette()[colour], width: 2, points: { show: numbers.step.length < 40, size: 5 }, spanGaps: true,
      }))],
      hooks: {
        draw: [level(numbers.budget_bytes, css("--budget")), level(numbers.predicted_bytes, palette()[2])],
        setCursor: [(plot) => plot.cursor.idx !== null && plot.cursor.idx !== undefined && show(plot.cursor.idx)],
      },
    }, [numbers.step, ...lines.map(([, name]) => numbers[name])], box)], (k) => [
      entry("step", numbers.step[k]),
      ...lines.map(([label, name, colour]) => entry(label, bytes(numbers[name][k]), palette()[colour])),
      entry("predicted peak", bytes(numbers.predicted_bytes), palette()[2], true),
      entry(limitName, bytes(numbers.budget_bytes), css("--budget"), true),
    ], numbers.step.length, numbers.step.length - 1);
  }

  const again = () => charts.forEach((draw) => draw());
  dark.addEventListener("change", again);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) again();
    width = innerWidth;
  });
})();
