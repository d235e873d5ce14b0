const SECTIONS = {
  verdict: "Verdict",
  experiments: "Experiments",
  heatmaps: "Results",
  curves: "Training",
  kinds: "Kinds of steps",
  runs: "Runs",
};

byId("summary").textContent = report.summary;
byId("notes").hidden = report.notes.length === 0;
byId("notes").append(...report.notes.map((note) => element("li", {}, note)));
showVerdict();
showExperiments();
showHeatmaps();
showCurves();
showTable();
const visible = Object.entries(SECTIONS).filter(([id]) => !byId(id).hidden);
byId("sections").append(...visible.map(([id, name]) => element("a", { href: `#${id}` }, name)));
