// Theme first, so that nothing flashes; then every part by itself: a fault in one leaves the others.
const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");
let themeFixed = location.hash === "#dark" || location.hash === "#light";
root.dataset.theme = themeFixed ? location.hash.slice(1) : dark.matches ? "dark" : "light";
dark.addEventListener("change", () => { if (!themeFixed) root.dataset.theme = dark.matches ? "dark" : "light"; });
place("theme").addEventListener("click", () => {
  themeFixed = true;
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
});
let beforePrint = "";
addEventListener("beforeprint", () => { beforePrint = root.dataset.theme; root.dataset.theme = "light"; });
addEventListener("afterprint", () => { root.dataset.theme = beforePrint; });
place("copy").addEventListener("click", async () => {
  const done = (text) => { place("copy").textContent = text; setTimeout(() => { place("copy").textContent = "Copy"; }, 1500); };
  try {
    await navigator.clipboard.writeText(place("command").textContent);
    done("Copied");
  } catch {
    getSelection().selectAllChildren(place("command"));
    done("Selected");
  }
});
const faults = [];
for (const [name, make] of Object.entries({ makeFront, makeCurves, makeEffects, makeTimeline, makeTelemetry, makeQuality, makeTable })) {
  try { make(); } catch (fault) { faults.push(`${name}: ${fault.message}`); console.error(name, fault); }
}
root.dataset.faults = faults.join("; ");
root.dataset.ready = String(Math.round(performance.now()));
