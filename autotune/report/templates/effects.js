// Importance of the settings, and the effect of each value with all others equal.
const effectState = { objective: 0 };
const MOST_SETTINGS = 12;
const shareText = (share) => (share < 0.1 ? "below 0.1 %" : `${share.toFixed(1)} %`);
const percent = (ratio) => `${ratio >= 1 ? "+" : "−"}${(Math.abs(ratio - 1) * 100).toFixed(1)} %`;

function drawImportance(width) {
  const rows = [...data.settings].sort((one, other) => other.importance[effectState.objective] - one.importance[effectState.objective]).slice(0, MOST_SETTINGS);
  const left = Math.min(260, width * 0.45), line = 26;
  const box = frame(width, rows.length * line + 52, { left, right: 84, top: 6, bottom: 46, label: "Importance of the settings" });
  const at = scale([0, ...rows.map((row) => row.importance[effectState.objective] * 100)], box.x0, box.x1, { zero: true, pad: 0.02, count: width < 500 ? 3 : 6, log: false });
  axisX(box, at, "Share of the variation explained (%)");
  rows.forEach((row, index) => {
    const share = row.importance[effectState.objective] * 100, y = box.y1 + index * line + 4;
    box.root.append(draw("text", { x: left - 10, y: y + 13, "text-anchor": "end", fill: "var(--ink)" }, cut(row.name, Math.floor(left / 6.8))));
    box.root.append(draw("rect", { x: at(0), y, width: Math.max(1, at(share) - at(0)), height: 16, rx: 3, fill: "var(--accent)", opacity: 0.85,
      ...tipped(() => [html("div", { class: "head" }, row.name), ...data.columns.map((column, place) => tipRow(column.title, shareText(row.importance[place] * 100)))]) }));
    box.root.append(draw("text", { x: at(share) + 6, y: y + 13 }, shareText(share)));
  });
  return box.root;
}

function drawEffect(row, reach, width) {
  const effects = row.effects[effectState.objective], line = 24, left = Math.min(130, width * 0.36);
  const box = frame(width, effects.length * line + 30, { left, right: 58, top: 4, bottom: 24, label: `Effect of ${row.name}` });
  const at = scale([-reach, reach], box.x0, box.x1, { log: false, pad: 0, count: 4 });
  for (const tick of at.ticks) {
    box.root.append(draw("line", { class: tick === 0 ? "axis" : "gridline", x1: at(tick), x2: at(tick), y1: box.y1, y2: box.y0 }));
    box.root.append(draw("text", { x: at(tick), y: box.y0 + 16, "text-anchor": "middle" }, tick === 0 ? "0" : `${tick > 0 ? "+" : "−"}${tickText(Math.abs(tick))} %`));
  }
  const inside = (ratio) => at(Math.max(-reach, Math.min(reach, (ratio - 1) * 100)));
  effects.forEach((effect, index) => {
    const y = box.y1 + index * line + 12;
    const colour = effect.low > 1 ? "var(--good)" : effect.high < 1 ? "var(--bad)" : "var(--quiet)";
    box.root.append(draw("text", { x: left - 10, y: y + 4, "text-anchor": "end" }, cut(effect.value, Math.floor(left / 8.2))));
    box.root.append(draw("line", { x1: inside(effect.low), x2: inside(effect.high), y1: y, y2: y, stroke: colour, "stroke-width": 3, opacity: 0.4 }));
    box.root.append(draw("circle", { cx: inside(effect.ratio), cy: y, r: 4.5, fill: colour, ...tipped(() => [
      html("div", { class: "head" }, `${row.name} = ${effect.value}`),
      tipRow("effect", `${percent(effect.ratio)} [${percent(effect.low)}, ${percent(effect.high)}]`),
      tipRow("trials", String(effect.trials))]) }));
    box.root.append(draw("text", { x: box.width, y: y + 4, "text-anchor": "end" }, percent(effect.ratio)));
  });
  return box.root;
}

function makeEffects() {
  if (!data.settings.length) {
    place("settings-lead").textContent = "Too few measured trials, or too little varied, to say what single settings do.";
    place("effects-title").hidden = true;
    return;
  }
  const lead = () => {
    place("settings-lead").textContent = "Settings are tried together, so the effect of each is estimated with all others in one additive model of the objective's logarithm"
      + ` (it explains ${Math.round(data.fits[effectState.objective] * 100)} % of the variation here). Effects are gains against the study's average: to the right is better, also for latencies. Bars are 95 % intervals.`;
  };
  const grid = () => {
    const rows = [...data.settings].sort((one, other) => other.importance[effectState.objective] - one.importance[effectState.objective]).slice(0, MOST_SETTINGS);
    const ends = rows.flatMap((row) => row.effects[effectState.objective].map((effect) => Math.abs(effect.ratio - 1) * 100));
    const reach = Math.max(2, Math.max(...ends) * 1.15);
    place("effects-grid").replaceChildren(...rows.map((row) => html("div", {}, html("h4", {}, row.name), drawEffect(row, reach, 330))));
  };
  lead();
  const repaint = chart("importance-chart", drawImportance);
  grid();
  if (data.columns.length > 1) {
    place("settings-controls").append(select("Objective", data.columns.map((column, index) => [String(index), column.title]), "0", (value) => {
      effectState.objective = Number(value);
      lead(); repaint(); grid();
    }));
  }
}
