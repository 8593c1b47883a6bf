// The front: measured trials apart by standing, and below them those that gave no figures.
const frontState = {
  hidden: new Set(),
  close: true,
  y: data.columns.length ? 0 : -1,
  x: data.columns.length > 1 ? 1 : -1,
};
const searched = trials.filter((trial) => !trial.repeat);
const measured = searched.filter((trial) => trial.objectives);
const axisName = (index) => {
  if (index < 0) return "Trial";
  const column = data.columns[index];
  return `${withUnit(column.title, column.unit ? `(${column.unit})` : "")}, ${column.maximize ? "more" : "less"} is better`;
};
const figureOf = (trial, index) => (index < 0 ? [trial.number, trial.number, trial.number] : trial.objectives[index]);

function beaten(front, x, y) {
  // Members of the front in these two objectives alone, in the order of x.
  const sign = (index) => (index >= 0 && data.columns[index].maximize ? -1 : 1);
  const loss = (trial, index) => sign(index) * figureOf(trial, index)[0];
  return front.filter((one) => !front.some((other) => other !== one &&
    loss(other, x) <= loss(one, x) && loss(other, y) <= loss(one, y) &&
    (loss(other, x) < loss(one, x) || loss(other, y) < loss(one, y))))
    .sort((one, other) => figureOf(one, x)[0] - figureOf(other, x)[0]);
}

function frontLine(box, atX, atY, shown) {
  const { x, y } = frontState;
  if (x < 0 || shown.length < 2) return;
  const points = beaten(shown, x, y).map((trial) => [atX(figureOf(trial, x)[0]), atY(figureOf(trial, y)[0])]);
  const better = data.columns[x].maximize === data.columns[y].maximize ? null : data.columns[y].maximize;
  let path = points.length ? `M${points[0]}` : "";
  for (let index = 1; index < points.length; index += 1) {
    if (better === null) path += `L${points[index]}`;
    else path += better ? `H${points[index][0]}V${points[index][1]}` : `V${points[index][1]}H${points[index][0]}`;
  }
  box.root.append(draw("path", { d: path, fill: "none", stroke: "var(--front)", "stroke-width": 1.6, opacity: 0.55 }));
}

function errorBars(box, trial, atX, atY, opacity) {
  const { x, y } = frontState;
  const [fx, fy] = [figureOf(trial, x), figureOf(trial, y)];
  const style = { stroke: `var(--${trial.standing})`, "stroke-width": 1.2, opacity, "clip-path": box.clip };
  if (x >= 0 && fx[2] > fx[1]) box.root.append(draw("line", { x1: atX(fx[1]), x2: atX(fx[2]), y1: atY(fy[0]), y2: atY(fy[0]), ...style }));
  if (fy[2] > fy[1]) box.root.append(draw("line", { x1: atX(fx[0]), x2: atX(fx[0]), y1: atY(fy[1]), y2: atY(fy[2]), ...style }));
}

function limitLines(box, atX, atY) {
  const line = (attributes) => box.root.append(draw("line", { stroke: "var(--limit)", "stroke-dasharray": "5 4", ...attributes }));
  const limit = (index) => (index >= 0 ? data.limits[data.columns[index].key] : undefined);
  const [lx, ly] = [limit(frontState.x), limit(frontState.y)];
  if (lx !== undefined && atX(lx) > box.x0 && atX(lx) < box.x1) {
    line({ x1: atX(lx), x2: atX(lx), y1: box.y1, y2: box.y0 });
    box.root.append(draw("text", { x: atX(lx) + 5, y: box.y0 - 6 }, `limit ${number(lx)}`));
  }
  if (ly !== undefined && atY(ly) > box.y1 && atY(ly) < box.y0) {
    line({ x1: box.x0, x2: box.x1, y1: atY(ly), y2: atY(ly) });
    box.root.append(draw("text", { x: box.x1, y: atY(ly) - 5, "text-anchor": "end" }, `limit ${number(ly)}`));
  }
}

function frontLabels(box, atX, atY, apart) {
  for (const [name, text] of [...new Set([data.baseline, data.chosen])].map((one) => [one, byNumber.has(one) ? role(byNumber.get(one)) : ""])) {
    const trial = byNumber.get(name);
    if (!trial || !trial.objectives || apart.has(trial) || frontState.hidden.has(trial.standing)) continue;
    const [px, py] = [atX(figureOf(trial, frontState.x)[0]), atY(figureOf(trial, frontState.y)[0])];
    const flip = px > box.x1 - 110;
    box.root.append(draw("circle", { cx: px, cy: py, r: 10, fill: "none", stroke: "var(--ink)", "stroke-width": 1.4, "pointer-events": "none" }));
    box.root.append(draw("text", { class: "strong halo", x: px + (flip ? -15 : 15), y: py - 9, "text-anchor": flip ? "end" : "start" }, text));
  }
}

function failedStrip(box, failed) {
  if (!failed.length) return;
  const y = box.height - 10;
  box.root.append(draw("text", { x: 0, y: y + 4 }, "no figures"));
  const step = Math.min(16, (box.x1 - 78) / failed.length);
  failed.forEach((trial, index) => box.root.append(
    symbol(trial.standing, { class: "mark", transform: `translate(${78 + index * step},${y})`, tabindex: -1,
      ...tipped(() => tipOf(trial), { onclick: () => openTrial(trial.number) }) })));
}

// What must be in sight: every figure, and the whole interval of the trials that matter most.
const frontValues = (shown, index) => shown.flatMap((trial) =>
  (trial.standing === "front" || trial.number === data.chosen ? figureOf(trial, index) : [figureOf(trial, index)[0]]));

// Configurations far beyond every limit squeeze what matters: close up, the front and what runs today fill the chart.
function closeUp(index) {
  const near = measured.filter((trial) => trial.standing === "front" || role(trial));
  if (index < 0 || near.length < 2) return null;
  const figures = near.flatMap((trial) => figureOf(trial, index));
  const limit = data.limits[data.columns[index].key];
  if (limit !== undefined) figures.push(limit);
  const [low, high] = [Math.min(...figures), Math.max(...figures)];
  const reach = (high - low) * 0.25 || high * 0.1;
  return [Math.max(low - reach, 0), high + reach];
}
function windowOf() {
  const [wx, wy] = [closeUp(frontState.x), closeUp(frontState.y)];
  const inside = (value, range) => !range || (value >= range[0] && value <= range[1]);
  const out = measured.filter((trial) => !inside(figureOf(trial, frontState.x)[0], wx) || !inside(figureOf(trial, frontState.y)[0], wy));
  const spread = (index, range) => range && (Math.max(...measured.map((trial) => figureOf(trial, index)[0])) - Math.min(...measured.map((trial) => figureOf(trial, index)[0]))) > 1.6 * (range[1] - range[0]);
  const useful = out.length > 0 && (spread(frontState.x, wx) || spread(frontState.y, wy));
  return { wx, wy, out: new Set(out), useful };
}

function drawFront(width) {
  const { x, y } = frontState;
  const view = windowOf();
  const close = view.useful && frontState.close;
  place("front-close").hidden = !view.useful;
  const apart = close ? view.out : new Set();
  place("front-apart").textContent = apart.size ? `${apart.size} lie outside` : "";
  const shown = measured.filter((trial) => !frontState.hidden.has(trial.standing) && !apart.has(trial));
  const failed = searched.filter((trial) => !trial.objectives && !frontState.hidden.has(trial.standing));
  if (y < 0 || !measured.length) return nothing("No trial has been measured yet.");
  const box = frame(width, Math.max(320, Math.min(500, width * 0.5)) + (failed.length ? 32 : 0), {
    label: `${axisName(y)} against ${axisName(x)}`, bottom: failed.length ? 78 : 46 });
  const atX = scale(frontValues(shown, x).concat(close && view.wx ? view.wx : []), box.x0, box.x1, { count: width < 500 ? 4 : 8 });
  const atY = scale(frontValues(shown, y).concat(close && view.wy ? view.wy : []), box.y0, box.y1, {});
  axisX(box, atX, axisName(x) + (atX.log ? " (log scale)" : ""));
  axisY(box, atY, axisName(y) + (atY.log ? " (log scale)" : ""));
  limitLines(box, atX, atY);
  const members = shown.filter((trial) => trial.standing === "front");
  frontLine(box, atX, atY, members);
  const clear = shown.length <= 60;
  const order = ["limit", "quality", "feasible", "front"];
  shown.sort((one, other) => order.indexOf(one.standing) - order.indexOf(other.standing));
  for (const trial of shown)
    if (clear || trial.standing === "front" || role(trial)) errorBars(box, trial, atX, atY, trial.standing === "front" ? 0.75 : 0.35);
  for (const trial of shown) {
    const at = `translate(${atX(figureOf(trial, x)[0]).toFixed(1)},${atY(figureOf(trial, y)[0]).toFixed(1)})`;
    box.root.append(symbol(trial.standing, { class: "mark", transform: at, tabindex: trial.standing === "front" ? 0 : -1,
      "aria-label": `trial ${trial.number}`, ...tipped(() => tipOf(trial), {
        onclick: () => openTrial(trial.number),
        onkeydown: (event) => { if (event.key === "Enter") openTrial(trial.number); } }) }));
  }
  frontLabels(box, atX, atY, apart);
  failedStrip(box, failed);
  return box.root;
}

function makeFront() {
  let repaint = () => {};
  const box = html("input", { type: "checkbox", checked: "", onchange: () => { frontState.close = box.checked; repaint(); } });
  const closer = html("label", { id: "front-close" }, box, "close up to the front");
  place("front-controls").append(closer, html("span", { id: "front-apart" }));
  repaint = chart("front-chart", drawFront);
  const axes = [[-1, "trial number"], ...data.columns.map((column, index) => [index, column.title])].map(([key, text]) => [String(key), text]);
  if (data.columns.length && measured.length) {
    place("front-controls").prepend(
      select("Across", axes, String(frontState.x), (value) => { frontState.x = Number(value); repaint(); }),
      select("Up", axes.slice(1), String(frontState.y), (value) => { frontState.y = Number(value); repaint(); }));
  }
  for (const [standing, [text]] of Object.entries(STANDINGS)) {
    const count = searched.filter((trial) => trial.standing === standing).length;
    if (!count) continue;
    const button = html("button", { type: "button", "aria-pressed": "true", onclick: () => {
      const hidden = frontState.hidden;
      if (!hidden.delete(standing)) hidden.add(standing);
      button.setAttribute("aria-pressed", String(!hidden.has(standing)));
      repaint();
    } }, icon(standing), `${text} (${count})`);
    place("front-legend").append(button);
  }
}
