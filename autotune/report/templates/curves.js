// Latency against throughput over the load levels; with one level, the spread of latencies instead.
const FAMILIES = [["ttft", "TTFT"], ["tpot", "TPOT"], ["itl", "ITL"], ["e2e", "E2E latency"]];
const PERCENTILES = [50, 75, 90, 95, 99];
const several = measured.some((trial) => trial.levels.length > 1);
const curveState = { shown: new Set(), metric: "" };

function curveTrials() {
  const chosen = [data.baseline, data.chosen].filter((number) => number !== null && byNumber.has(number) && byNumber.get(number).levels);
  const front = measured.filter((trial) => trial.standing === "front").map((trial) => trial.number);
  const step = Math.max(1, Math.floor(front.length / 5));
  const more = front.filter((_, index) => index % step === 0);
  return [...new Set([...chosen, ...more])].slice(0, 7).map((number) => byNumber.get(number));
}
const compared = curveTrials();
const curveName = (trial) => `trial ${trial.number}${role(trial) ? `, ${role(trial)}` : ""}`;
const curveColour = (trial) => `var(--s${trial.number === data.baseline ? 0 : 1 + (compared.indexOf(trial) + (compared[0].number === data.baseline ? 5 : 0)) % 6})`;

function curvePoints(trial) {
  if (several) {
    return trial.levels.filter((level) => level.figures[curveState.metric] && level.figures.output_throughput).map((level) => ({
      x: level.figures.output_throughput[0], y: level.figures[curveState.metric], name: level.name,
      rows: [["Output throughput", estimate(level.figures.output_throughput, "tok/s")]] }));
  }
  const level = trial.levels[trial.levels.length - 1];
  return PERCENTILES.map((percentile, index) => [percentile, index, level.figures[`${curveState.metric}_p${percentile}_ms`]])
    .filter(([, , figure]) => figure).map(([percentile, index, figure]) => ({ x: index, y: figure, name: `p${percentile}`, rows: [] }));
}

function drawCurve(box, trial, points, atX, atY, width) {
  const colour = curveColour(trial);
  const spots = points.map((point) => [atX(point.x), atY(point.y[0])]);
  box.root.append(draw("path", { d: `M${spots.join("L")}`, fill: "none", stroke: colour, "stroke-width": width, "stroke-linejoin": "round",
    "stroke-dasharray": trial.number === data.baseline ? "6 4" : null }));
  points.forEach((point, index) => {
    const [px, py] = spots[index];
    if (point.y[2] > point.y[1]) box.root.append(draw("line", { x1: px, x2: px, y1: atY(point.y[1]), y2: atY(point.y[2]), stroke: colour, opacity: 0.45, "clip-path": box.clip }));
    box.root.append(draw("circle", { class: "mark", cx: px, cy: py, r: 4.5, fill: "var(--paper)", stroke: colour, "stroke-width": 2, ...tipped(() => [
      html("div", { class: "head" }, `${curveName(trial)}, ${point.name}`),
      ...point.rows.map(([name, text]) => tipRow(name, text)),
      tipRow(several ? data.metrics[curveState.metric][0] : point.name, estimate(point.y, "ms")),
      html("div", { class: "words" }, cut(trial.changes, 300))], { onclick: () => openTrial(trial.number) }) }));
  });
}

function drawCurves(width) {
  const shown = compared.filter((trial) => curveState.shown.has(trial.number));
  const lines = shown.map((trial) => [trial, curvePoints(trial)]).filter(([, points]) => points.length);
  if (!lines.length) return nothing("Nothing is chosen, or the chosen trials do not have this figure.");
  const all = lines.flatMap(([, points]) => points);
  const title = several ? data.metrics[curveState.metric][0] : FAMILIES.find(([key]) => key === curveState.metric)[1];
  const box = frame(width, Math.max(300, Math.min(420, width * 0.42)), { label: title });
  const atY = scale(all.map((point) => point.y[0]), box.y0, box.y1, { zero: Math.max(...all.map((p) => p.y[0])) < 25 * Math.min(...all.map((p) => p.y[0])) });
  const atX = several
    ? scale(all.map((point) => point.x), box.x0, box.x1, { zero: true, log: false, count: width < 500 ? 4 : 8 })
    : Object.assign((value) => box.x0 + ((value + 0.5) / PERCENTILES.length) * (box.x1 - box.x0), { ticks: PERCENTILES.map((_, index) => index) });
  axisX(box, atX, several ? "Output throughput (tok/s)" : "Percentile of the requests", several ? number : (index) => `p${PERCENTILES[index]}`);
  axisY(box, atY, `${title} (ms), less is better${atY.log ? " (log scale)" : ""}`);
  for (const [trial, points] of lines) drawCurve(box, trial, points, atX, atY, role(trial) ? 2.6 : 1.5);
  return box.root;
}

function makeCurves() {
  if (!compared.length) { place("curves-chart").append(nothing("No trial has been measured yet.")); return; }
  place("curves-lead").textContent = several
    ? "One line a configuration, one point a load level: further right serves more, further down answers sooner."
    : "The study has one load level, so this shows how latencies spread over its requests. With several levels it would show latency against throughput.";
  const options = several
    ? Object.entries(data.metrics).filter(([key, [, unit]]) => unit === "ms" && compared.some((trial) => trial.levels.some((level) => level.figures[key]))).map(([key, [title]]) => [key, title])
    : FAMILIES.filter(([key]) => compared.some((trial) => trial.levels.some((level) => level.figures[`${key}_p50_ms`])));
  if (!options.length) { place("curves-chart").append(nothing("The trials have no latencies.")); return; }
  const wanted = several ? data.columns.map((column) => column.key) : data.columns.map((column) => column.key.split("_")[0]);
  curveState.metric = (options.find(([key]) => wanted.includes(key)) || options[0])[0];
  compared.forEach((trial, index) => { if (index < 4 || role(trial)) curveState.shown.add(trial.number); });
  const repaint = chart("curves-chart", drawCurves);
  place("curves-controls").append(select("Latency", options, curveState.metric, (value) => { curveState.metric = value; repaint(); }));
  for (const trial of compared) {
    const line = draw("svg", { viewBox: "-7 -7 14 14" }, draw("line", { x1: -7, x2: 7, stroke: curveColour(trial), "stroke-width": 3 }));
    const button = html("button", { type: "button", "aria-pressed": String(curveState.shown.has(trial.number)), onclick: () => {
      if (!curveState.shown.delete(trial.number)) curveState.shown.add(trial.number);
      button.setAttribute("aria-pressed", String(curveState.shown.has(trial.number)));
      repaint();
    } }, line, curveName(trial));
    place("curves-legend").append(button);
  }
}
