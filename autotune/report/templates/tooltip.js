// One tooltip for all charts; for pointers and for the keyboard.
const tip = place("tip");
function showTip(event, node, lines) {
  tip.replaceChildren(...lines);
  tip.hidden = false;
  const spot = event.clientX !== undefined && event.type !== "focusin" ? { x: event.clientX, y: event.clientY } : null;
  const box = node.getBoundingClientRect();
  const [x, y] = spot ? [spot.x, spot.y] : [box.right, box.top];
  const left = x + 16 + tip.offsetWidth > innerWidth ? Math.max(6, x - 16 - tip.offsetWidth) : x + 16;
  tip.style.left = `${left}px`;
  tip.style.top = `${Math.max(6, Math.min(y + 14, innerHeight - tip.offsetHeight - 6))}px`;
}
const hideTip = () => { tip.hidden = true; };
const tipped = (lines, more) => ({ tip: lines, ...more });
function tipAt(event) {
  let node = event.target;
  while (node instanceof Element && !tips.has(node)) node = node.parentNode;
  if (node instanceof Element) showTip(event, node, tips.get(node)());
  else hideTip();
}
for (const kind of ["pointerover", "pointermove", "focusin"]) document.addEventListener(kind, tipAt);
for (const kind of ["pointerout", "focusout"]) document.addEventListener(kind, hideTip);
addEventListener("scroll", hideTip, { passive: true });

const tipRow = (name, value) => html("div", { class: "row" }, html("span", {}, name), html("span", {}, value));
function tipOf(trial) {
  const lines = [html("div", { class: "head" }, `Trial ${trial.number}`, role(trial) ? `, ${role(trial)}` : "")];
  lines.push(html("div", { class: "sub" }, `${trial.origin}, ${STANDINGS[trial.standing][0]}`));
  (trial.objectives || []).forEach((figure, index) =>
    lines.push(tipRow(data.columns[index].title, estimate(figure, data.columns[index].unit))));
  if (trial.reason) lines.push(html("div", { class: "words" }, cut(trial.reason, 220)));
  lines.push(html("div", { class: "words" }, cut(trial.changes, 420)));
  return lines;
}
const cut = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);
function role(trial) {
  if (trial.number === data.chosen) return data.chosen === data.baseline ? "baseline, kept" : "recommended";
  return trial.number === data.baseline ? "baseline" : "";
}
