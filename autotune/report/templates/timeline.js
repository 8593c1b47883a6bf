// Where the GPU time went: a bar of the sums, and every trial on the clock.
const STAGES = {
  start: ["starting engines", "--start"], warmup: ["warming up", "--warmup"], measure: ["measuring", "--measure"],
  quality: ["checking answers", "--check"], stop: ["stopping", "--stop"], overhead: ["everything else", "--overhead"],
  failed: ["trials without figures", "--failed"],
};

function drawSpending(width) {
  const total = data.spending.reduce((sum, [, seconds]) => sum + seconds, 0);
  if (!total) return nothing("No time was spent yet.");
  const root = draw("svg", { viewBox: `0 0 ${width} 34`, role: "img", "aria-label": "GPU time by stage" });
  let x = 0;
  for (const [name, seconds] of data.spending) {
    const size = (seconds / total) * width;
    root.append(draw("rect", { x, y: 2, width: Math.max(0.5, size - 1), height: 28, rx: 3, fill: `var(${STAGES[name][1]})`,
      ...tipped(() => [html("div", { class: "head" }, STAGES[name][0]), tipRow("GPU time", duration(seconds)), tipRow("share", `${((100 * seconds) / total).toFixed(1)} %`)]) }));
    x += size;
  }
  const legend = html("div", { class: "legend" }, ...data.spending.map(([name, seconds]) => html("span", {},
    draw("svg", { viewBox: "-7 -7 14 14" }, draw("rect", { x: -6, y: -6, width: 12, height: 12, rx: 3, fill: `var(${STAGES[name][1]})` })),
    `${STAGES[name][0]} ${duration(seconds)} (${((100 * seconds) / total).toFixed(seconds / total < 0.1 ? 1 : 0)} %)`)));
  return [root, legend];
}

function lanesOf() {
  const ends = [];
  return trials.filter((trial) => trial.seconds > 0).map((trial) => {
    let lane = ends.findIndex((end) => end <= trial.begin_s + 0.5);
    if (lane < 0) { lane = ends.length; ends.push(0); }
    ends[lane] = trial.begin_s + trial.seconds;
    return { trial, lane };
  });
}

function drawTimeline(width) {
  const placed = lanesOf();
  if (!placed.length) return null;
  const lanes = 1 + Math.max(...placed.map((one) => one.lane)), tall = lanes > 4 ? 18 : 36;
  const end = Math.max(...placed.map(({ trial }) => trial.begin_s + trial.seconds));
  const [unit, size] = end > 5400 ? ["h", 3600] : end > 180 ? ["min", 60] : ["s", 1];
  const box = frame(width, lanes * (tall + 6) + 64, { left: 4, right: 8, top: 18, bottom: 46, label: "Trials over time" });
  const at = scale([0, end / size], box.x0, box.x1, { zero: true, pad: 0, log: false, count: width < 500 ? 4 : 10 });
  axisX(box, at, `Time since the first trial began (${unit})`);
  for (const { trial, lane } of placed) {
    const group = draw("g", { class: "mark", ...tipped(() => [...tipOf(trial), tipRow("took", duration(trial.seconds)),
      ...(trial.stages || []).filter(([, seconds]) => seconds >= 0.05).map(([name, seconds]) => tipRow((STAGES[name] || [name])[0], duration(seconds)))],
      { onclick: () => openTrial(trial.number) }) });
    const y = box.y1 + lane * (tall + 6), failed = !trial.levels;
    let from = trial.begin_s;
    const parts = failed || !trial.stages ? [["failed", trial.seconds]] : trial.stages;
    for (const [name, seconds] of parts) {
      const [x0, x1] = [at(from / size), at(Math.min(from + seconds, end) / size)];
      group.append(draw("rect", { x: x0.toFixed(1), y, width: Math.max(0.4, x1 - x0).toFixed(1), height: tall, fill: `var(${(STAGES[name] || STAGES.overhead)[1]})` }));
      from += seconds;
    }
    const [first, last] = [at(trial.begin_s / size), at((trial.begin_s + trial.seconds) / size)];
    group.append(draw("line", { x1: first, x2: first, y1: y - 1, y2: y + tall + 1, stroke: "var(--paper)", "stroke-width": Math.min(1.5, (last - first) / 4) }));
    if (last - first > 24) group.append(draw("text", { x: (first + last) / 2, y: y - 5, "text-anchor": "middle" }, String(trial.number)));
    box.root.append(group);
  }
  return box.root;
}

function makeTimeline() {
  chart("spending-chart", drawSpending);
  chart("timeline-chart", drawTimeline);
}
