// Every statistic of the gate as a share of its limit, with its noise floor; checks without a figure in words.
const VERDICTS = { passed: "var(--good)", failed: "var(--bad)", undecided: "var(--limit)", skipped: "var(--quiet)" };

function drawChecks(view, width) {
  const line = 30, left = Math.min(130, width * 0.36);
  const box = frame(width, view.checks.length * line + 34, { left, right: 14, top: 6, bottom: 28, label: `Quality checks, ${view.verdict}` });
  const most = Math.max(1.25, Math.min(3, Math.max(0, ...view.checks.map((check) => check.high ?? check.used ?? 0))));
  const at = scale([0, most * 100], box.x0, box.x1, { zero: true, pad: 0, log: false, count: 4 });
  for (const tick of at.ticks) {
    box.root.append(draw("line", { class: "gridline", x1: at(tick), x2: at(tick), y1: box.y1, y2: box.y0 }));
    box.root.append(draw("text", { x: at(tick), y: box.y0 + 16, "text-anchor": "middle" }, `${tickText(tick)} %`));
  }
  box.root.append(draw("line", { x1: at(100), x2: at(100), y1: box.y1, y2: box.y0, stroke: "var(--bad)", "stroke-dasharray": "5 4" }));
  const inside = (used) => at(100 * Math.max(0, Math.min(most, used ?? 0)));
  view.checks.forEach((check, index) => {
    const y = box.y1 + index * line + 5, colour = VERDICTS[check.verdict] || "var(--quiet)";
    const tips = tipped(() => [html("div", { class: "head" }, `${check.name}: ${check.verdict}`), html("div", {}, check.text),
      check.plain ? "" : tipRow("noise floor", `${number((check.noise ?? 0) * 100)} % of the limit`), check.note ? html("div", { class: "words" }, check.note) : ""]);
    box.root.append(draw("text", { x: left - 10, y: y + 13, "text-anchor": "end" }, cut(check.name, Math.floor(left / 7))));
    if (check.plain) {
      box.root.append(draw("text", { x: at(0) + 4, y: y + 13, style: `fill: ${colour}`, ...tips }, check.verdict === "passed" ? "✓ holds" : check.verdict === "failed" ? "✗ does not hold" : "? open"));
      return;
    }
    box.root.append(draw("rect", { x: at(0), y, width: Math.max(1, inside(check.used) - at(0)), height: 18, rx: 3, fill: colour, opacity: 0.8, ...tips }));
    box.root.append(draw("line", { x1: inside(check.low), x2: inside(check.high), y1: y + 9, y2: y + 9, stroke: "var(--ink)", "stroke-width": 1.3 }));
    box.root.append(draw("line", { x1: inside(check.noise), x2: inside(check.noise), y1: y - 3, y2: y + 21, stroke: "var(--ink)", "stroke-width": 2 }));
  });
  return box.root;
}

function makeQuality() {
  if (!data.quality.length) {
    place("quality-lead").textContent = "No gate was run in this study: nothing is known about the answers.";
    return;
  }
  place("quality-lead").textContent = "How much of its limit each statistic takes up; beyond 100 % the gate fails. The thick stroke is the noise floor (the same statistic of the baseline against itself), the thin line the 95 % interval.";
  for (const view of data.quality) {
    const numbers = view.trials.slice(0, 8).join(", ") + (view.trials.length > 8 ? " …" : "");
    place("quality-grid").append(html("div", {},
      html("h4", {}, cut(view.changes, 90)), html("p", { class: "quiet" }, `${view.verdict}; ${view.trials.length === 1 ? "trial" : "trials"} ${numbers}`),
      view.checks.length ? drawChecks(view, 330) : nothing("No statistics were kept.")));
  }
}
