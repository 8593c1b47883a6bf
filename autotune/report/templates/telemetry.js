// The engine's own figures over the measured window of the last level.
const TELEMETRY = {
  kv_usage_max: ["KV cache use, highest", "%", 100], kv_usage_mean: ["KV cache use, mean", "%", 100],
  running_mean: ["requests running, mean", "", 1], running_max: ["requests running, highest", "", 1],
  waiting_mean: ["requests waiting, mean", "", 1], waiting_max: ["requests waiting, highest", "", 1],
  preemptions: ["preemptions", "", 1], prefix_hit_rate: ["prefix cache hits", "%", 100],
  iteration_tokens_mean: ["tokens per step, mean", "", 1], draft_acceptance: ["draft tokens accepted", "%", 100],
  prompt_tokens: ["prompt tokens", "", 1], generation_tokens: ["generated tokens", "", 1],
  engine_imbalance: ["busiest engine's tokens over the mean of all", "", 1], gpu_utilisation_mean: ["GPU use, mean", "%", 1],
  gpu_imbalance: ["GPU use, largest difference", "points", 1], gpu_power_watts: ["GPU power, all", "W", 1],
  gpu_memory_max_bytes: ["GPU memory, highest", "GiB", 2 ** -30], client_cpu_share: ["load client's CPU share", "%", 100],
};
const lastLevel = (trial) => trial.levels[trial.levels.length - 1];
const EACH = { utilisation_mean: ["use, mean", "%", 1], memory_max_bytes: ["memory, highest", "GiB", 2 ** -30], power_watts: ["power", "W", 1] };
function telemetryName(key) {
  const [, index, what] = key.match(/^gpu_(\d+)_(.+)$/) || [];
  if (EACH[what]) return [`GPU ${index}: ${EACH[what][0]}`, EACH[what][1], EACH[what][2]];
  return TELEMETRY[key] || [key.replaceAll("_", " "), "", 1];
}
const telemetryText = (key, value) => (value === undefined ? "–" : withUnit(number(value * telemetryName(key)[2]), telemetryName(key)[1]));

function telemetryTable(keys) {
  const picked = compared.filter((trial) => role(trial) || trial.standing === "front").slice(0, 5);
  const head = html("tr", {}, html("th", {}, "Figure"), ...picked.map((trial) => html("th", {}, curveName(trial))));
  const rows = keys.map((key) => html("tr", {}, html("th", {}, telemetryName(key)[0]),
    ...picked.map((trial) => html("td", {}, telemetryText(key, (lastLevel(trial).engine || {})[key])))));
  rows.unshift(html("tr", {}, html("th", {}, "KV cache size"), ...picked.map((trial) => html("td", {}, trial.kv_cache_tokens ? `${number(trial.kv_cache_tokens)} tokens` : "–"))));
  return html("table", {}, html("thead", {}, head), html("tbody", {}, ...rows));
}

function makeTelemetry() {
  const seen = new Set(measured.flatMap((trial) => Object.keys(lastLevel(trial).engine || {})));
  const keys = [...Object.keys(TELEMETRY).filter((key) => seen.has(key)), ...[...seen].filter((key) => !TELEMETRY[key] && key !== "warmup_steady").sort()];
  if (!keys.length) { place("telemetry-lead").textContent = "The engine gave no figures of its own."; return; }
  place("telemetry-lead").textContent = "What the engine's own metrics said over the measured window of the last load level.";
  let key = keys[0];
  const repaint = chart("telemetry-chart", (width) => {
    const [title, unit, factor] = telemetryName(key);
    const points = measured.filter((trial) => (lastLevel(trial).engine || {})[key] !== undefined && lastLevel(trial).engine[key] !== null);
    const figure = (trial) => lastLevel(trial).engine[key] * factor;
    const box = frame(width, 250, { label: title });
    const atX = scale(points.map((trial) => trial.number), box.x0, box.x1, { log: false, pad: 0.02, count: Math.min(points.length, width < 500 ? 5 : 10) });
    atX.ticks = atX.ticks.filter((tick) => Number.isInteger(tick) && tick >= 0);
    const atY = scale(points.map(figure), box.y0, box.y1, { zero: true, log: false, count: 4 });
    axisX(box, atX, "Trial");
    axisY(box, atY, `${title[0].toUpperCase()}${title.slice(1)}${unit ? ` (${unit})` : ""}`);
    for (const trial of points)
      box.root.append(symbol(trial.standing, { class: "mark", transform: `translate(${atX(trial.number).toFixed(1)},${atY(figure(trial)).toFixed(1)})`,
        ...tipped(() => [tipOf(trial)[0], tipRow(title, telemetryText(key, lastLevel(trial).engine[key])), html("div", { class: "words" }, cut(trial.changes, 300))], { onclick: () => openTrial(trial.number) }) }));
    return box.root;
  });
  place("telemetry-controls").append(select("Figure", keys.map((name) => [name, telemetryName(name)[0]]), key, (value) => { key = value; repaint(); }));
  place("telemetry-table").append(telemetryTable(keys));
}
