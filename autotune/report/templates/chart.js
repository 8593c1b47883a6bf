// Elements, scales and axes. Text always goes in as text, never as markup.
const data = JSON.parse(document.getElementById("data").textContent);
const trials = data.trials;
const byNumber = new Map(trials.map((trial) => [trial.number, trial]));

// What the tooltip says of an element; one listener of the page serves all marks.
const tips = new WeakMap();
function build(space, tag, attributes, children) {
  const node = space ? document.createElementNS(space, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "tip") tips.set(node, value);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  for (const child of children) if (child !== undefined && child !== null) node.append(child);
  return node;
}
const html = (tag, attributes, ...children) => build(null, tag, attributes, children);
const draw = (tag, attributes, ...children) => build("http://www.w3.org/2000/svg", tag, attributes, children);
const place = (id) => document.getElementById(id);

function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size >= 100) return Math.round(value).toLocaleString("en");
  if (size >= 10) return value.toFixed(1);
  return String(Number(value.toPrecision(3)));
}
// Ticks are round numbers already: no trailing zeros.
const tickText = (value) => Number(value.toPrecision(6)).toLocaleString("en", { maximumFractionDigits: 6 });
const withUnit = (text, unit) => (unit ? `${text} ${unit}` : text);
function estimate(triple, unit) {
  if (!triple) return "–";
  const [value, low, high] = triple;
  return withUnit(high > low ? `${number(value)} [${number(low)}, ${number(high)}]` : number(value), unit);
}
function duration(seconds) {
  if (seconds < 59.5) return seconds < 9.95 ? `${seconds.toFixed(1)} s` : `${Math.round(seconds)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} min`;
}

function ticksOf(low, high, count) {
  const raw = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= raw);
  const ticks = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index += 1) ticks.push(index * step);
  return ticks;
}
function logTicks(low, high, count) {
  const all = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1)
    for (const factor of [1, 2, 5]) all.push(factor * 10 ** power);
  const inside = all.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
  if (inside.length < 3) return ticksOf(low, high, count);
  return inside.length > count + 2 ? inside.filter((_, index) => index % Math.ceil(inside.length / count) === 0) : inside;
}
// A scale knows its domain, its ticks and where a value lies. Wide positive ranges become logarithmic.
function scale(values, from, to, options) {
  const { count = 6, zero = false, pad = 0.05, log } = options || {};
  const finite = values.filter((value) => Number.isFinite(value));
  let low = Math.min(...finite), high = Math.max(...finite);
  if (!finite.length) [low, high] = [0, 1];
  if (zero) low = Math.min(low, 0);
  const logarithmic = log ?? (!zero && low > 0 && high / low > 25);
  if (low === high) [low, high] = [low - (Math.abs(low) * 0.1 || 1), high + (Math.abs(high) * 0.1 || 1)];
  const on = logarithmic ? Math.log10 : (value) => value;
  let [a, b] = [on(low), on(high)];
  const margin = (b - a) * pad;
  if (!(zero && low === 0)) a -= margin;
  b += margin;
  const at = (value) => from + ((on(value) - a) / (b - a)) * (to - from);
  const ends = logarithmic ? [10 ** a, 10 ** b] : [a, b];
  at.ticks = logarithmic ? logTicks(...ends, count) : ticksOf(...ends, count);
  at.log = logarithmic;
  return at;
}

// A frame with axes: titles carry the unit; draws nothing but lines, ticks and titles.
let clips = 0;
function frame(width, height, options) {
  const left = options.left ?? 62, right = options.right ?? 16, top = options.top ?? 26, bottom = options.bottom ?? 44;
  const root = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": options.label });
  const clip = `clip${(clips += 1)}`;
  root.append(draw("clipPath", { id: clip }, draw("rect", { x: left, y: top, width: Math.max(0, width - left - right), height: Math.max(0, height - top - bottom) })));
  return { root, clip: `url(#${clip})`, left, top, width, height, x0: left, x1: width - right, y0: height - bottom, y1: top };
}
function axisX(box, at, title, format) {
  for (const tick of at.ticks) {
    box.root.append(draw("line", { class: "gridline", x1: at(tick), x2: at(tick), y1: box.y1, y2: box.y0 }));
    box.root.append(draw("text", { x: at(tick), y: box.y0 + 17, "text-anchor": "middle" }, (format || tickText)(tick)));
  }
  box.root.append(draw("line", { class: "axis", x1: box.x0, x2: box.x1, y1: box.y0, y2: box.y0 }));
  if (title) box.root.append(draw("text", { class: "title", x: box.x1, y: box.y0 + 37, "text-anchor": "end" }, title));
}
function axisY(box, at, title, format) {
  for (const tick of at.ticks) {
    box.root.append(draw("line", { class: "gridline", x1: box.x0, x2: box.x1, y1: at(tick), y2: at(tick) }));
    box.root.append(draw("text", { x: box.x0 - 8, y: at(tick) + 4, "text-anchor": "end" }, (format || tickText)(tick)));
  }
  if (title) box.root.append(draw("text", { class: "title", x: 0, y: 12 }, title));
}

const STANDINGS = {
  front: ["on the front", "M0-5.5A5.5 5.5 0 1 1 0 5.5A5.5 5.5 0 1 1 0-5.5Z", true],
  feasible: ["feasible", "M0-4A4 4 0 1 1 0 4A4 4 0 1 1 0-4Z", false],
  limit: ["breaks a latency limit", "M0-5.2L5 4L-5 4Z", false],
  quality: ["fails the quality gate", "M0-5.5L5.5 0L0 5.5L-5.5 0Z", false],
  infeasible: ["could not serve", "M-4-4L4 4M4-4L-4 4", false],
  refused: ["refused before the start", "M-4 0L4 0", false],
  broken: ["broke, nothing learnt", "M-4-4L4-4L4 4L-4 4Z", false],
};
function symbol(standing, attributes) {
  const [, path, filled] = STANDINGS[standing];
  const colour = `var(--${standing})`;
  return draw("path", { d: path, fill: filled ? colour : "transparent", stroke: colour, "stroke-width": 1.7, ...attributes });
}
function icon(standing) {
  return draw("svg", { viewBox: "-7 -7 14 14", "aria-hidden": "true" }, symbol(standing, {}));
}

// Draws now, and again when the width changes.
const drawings = [];
function chart(id, make) {
  const box = place(id);
  let last = 0;
  const paint = (force) => {
    const width = Math.floor(box.clientWidth) || 700;
    if (!force && width === last) return;
    last = width;
    const made = make(width);
    box.replaceChildren(...(Array.isArray(made) ? made : [made]).filter(Boolean));
  };
  drawings.push(paint);
  paint(true);
  return () => paint(true);
}
let waiting = 0;
addEventListener("resize", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => drawings.forEach((paint) => paint(false)), 120);
});

function select(title, options, value, change) {
  const box = html("select", { onchange: () => change(box.value) },
    ...options.map(([key, text]) => html("option", { value: key, selected: key === value ? "" : false }, text)));
  return html("label", {}, title, box);
}
const nothing = (text) => html("p", { class: "quiet" }, text);
