// Every trial: sortable, filtered by text, opened in place.
const tableState = { key: "number", up: true, words: "", repeats: true, open: new Set() };
const RANK = Object.keys(STANDINGS);
const headers = [
  { key: "number", title: "Trial", number: true, value: (trial) => trial.number },
  { key: "origin", title: "Origin", value: (trial) => trial.origin },
  { key: "outcome", title: "Outcome", value: (trial) => RANK.indexOf(trial.standing) },
  ...data.columns.map((column, index) => ({ key: `o${index}`, title: withUnit(column.title, column.unit ? `(${column.unit})` : ""), number: true,
    first: column.maximize ? "down" : "up", value: (trial) => (trial.objectives ? trial.objectives[index][0] : null) })),
  { key: "seconds", title: "Took", number: true, value: (trial) => trial.seconds },
  { key: "changes", title: "Against the baseline", value: (trial) => trial.changes },
];

function sorted() {
  const header = headers.find((one) => one.key === tableState.key);
  const words = tableState.words.toLowerCase().split(/\s+/).filter(Boolean);
  const text = (trial) => `${trial.number} ${trial.origin} ${trial.outcome} ${trial.standing} ${trial.changes} ${trial.reason || ""}`.toLowerCase();
  const shown = trials.filter((trial) => (tableState.repeats || !trial.repeat) && words.every((word) => text(trial).includes(word)));
  const sign = tableState.up ? 1 : -1;
  return shown.sort((one, other) => {
    const [a, b] = [header.value(one), header.value(other)];
    if (a === null || b === null) return (a === null) - (b === null) || one.number - other.number; // without a figure: last
    return sign * (typeof a === "number" ? a - b : a.localeCompare(b)) || one.number - other.number;
  });
}

function pairs(title, rows) {
  if (!rows.length) return null;
  return html("div", {}, html("h5", {}, title), ...rows.map(([name, value]) => html("div", { class: "row" }, html("span", {}, name), html("span", {}, value))));
}
function detail(trial) {
  const box = html("div", { class: "detail" });
  const words = [trial.reason, trial.note].filter(Boolean);
  for (const text of words) box.append(html("div", { class: "wide" }, text));
  const blocks = [
    pairs("Configuration", trial.args || []),
    pairs("Environment variables", trial.env || []),
    ...(trial.levels || []).map((level) => pairs(`Load ${level.name}: ${number(level.requests)} requests in ${duration(level.window_s)}${level.errors ? `, ${level.errors} errors` : ""}${level.stopped ? `, stopped: ${level.stopped}` : ""}${(level.notes || []).map((note) => `; ${note}`).join("")}`,
      Object.entries(level.figures || {}).map(([key, figure]) => [(data.metrics[key] || [key])[0], estimate(figure, (data.metrics[key] || ["", ""])[1])]))),
    ...(trial.levels || []).slice(-1).map((level) => pairs("Engine over the last level", Object.entries(level.engine || {}).map(([key, value]) => [telemetryName(key)[0], telemetryText(key, value ?? undefined)]))),
    pairs("Where the time went", (trial.stages || []).map(([name, seconds]) => [(STAGES[name] || [name])[0], duration(seconds)])),
    pairs("Phases of the start", (trial.phases || []).map(([name, seconds]) => [name.replaceAll("_", " "), duration(seconds)])),
  ];
  box.append(...blocks.filter(Boolean));
  return box;
}

function rowOf(trial) {
  const cells = headers.map((header) => {
    if (header.key === "number") return html("td", { class: "number" }, String(trial.number));
    if (header.key === "outcome") {
      const name = role(trial);
      return html("td", { class: "outcome" }, icon(trial.standing), `\u00a0${trial.levels ? STANDINGS[trial.standing][0] : trial.outcome}`, name ? html("span", { class: "badge" }, name) : null);
    }
    if (header.key.startsWith("o") && header.number) {
      const figure = trial.objectives ? trial.objectives[Number(header.key.slice(1))] : null;
      return html("td", { class: "number", title: figure ? estimate(figure) : null }, figure ? number(figure[0]) : "–");
    }
    if (header.key === "seconds") return html("td", { class: "number" }, duration(trial.seconds));
    if (header.key === "changes") return html("td", { class: "what" }, html("div", {}, trial.changes));
    return html("td", {}, header.value(trial));
  });
  const dim = trial.standing === "front" || trial.standing === "feasible" ? "" : " dim";
  const row = html("tr", { class: `trial${dim}`, id: `trial-${trial.number}`, onclick: () => toggle(trial, row) }, ...cells);
  if (tableState.open.has(trial.number)) return [row, detailRow(trial, row)];
  return [row];
}
function detailRow(trial, row) {
  row.classList.add("open");
  return html("tr", { class: "more" }, html("td", { colspan: headers.length }, detail(trial)));
}
function toggle(trial, row) {
  if (tableState.open.delete(trial.number)) { row.classList.remove("open"); row.nextSibling.remove(); return; }
  tableState.open.add(trial.number);
  row.after(detailRow(trial, row));
}

function paintTable() {
  const head = html("tr", {}, ...headers.map((header) => html("th", {
    class: header.number ? "number" : null, scope: "col", tabindex: 0,
    "aria-sort": header.key === tableState.key ? (tableState.up ? "ascending" : "descending") : null,
    onclick: () => sortBy(header), onkeydown: (event) => { if (event.key === "Enter") sortBy(header); },
  }, header.title, header.key === tableState.key ? (tableState.up ? " ↑" : " ↓") : "")));
  const shown = sorted();
  const body = html("tbody", {}, ...shown.flatMap(rowOf));
  place("trials-table").replaceChildren(html("table", {}, html("thead", {}, head), body), shown.length ? "" : nothing("No trial matches."));
}
function sortBy(header) {
  tableState.up = tableState.key === header.key ? !tableState.up : header.first !== "down";
  tableState.key = header.key;
  paintTable();
}
function openTrial(number) {
  hideTip();
  tableState.words = "";
  tableState.repeats = true;
  place("trials-search").value = "";
  tableState.open.add(number);
  paintTable();
  place(`trial-${number}`).scrollIntoView({ block: "center" });
}
function makeTable() {
  const search = html("input", { type: "search", id: "trials-search", placeholder: "Filter: fp8, oom, expert …", "aria-label": "Filter trials",
    oninput: () => { tableState.words = search.value; paintTable(); } });
  place("trials-controls").append(search);
  if (trials.some((trial) => trial.repeat)) {
    const box = html("input", { type: "checkbox", checked: "", onchange: () => { tableState.repeats = box.checked; paintTable(); } });
    place("trials-controls").append(html("label", {}, box, "confirmations and repeats"));
  }
  paintTable();
}
