// The range of learning rates that work, and the tables of reproduced experiments.

const cell = (content, attributes = {}) => element("td", attributes, content);
const NUMBER = { class: "number" };

// A table that scrolls on its own; titles are texts or [text, attributes].
function tableOf(titles, rows, caption = null) {
  const heads = titles.map((title) => {
    const [text, attributes] = [title].flat();
    return element("th", { scope: "col", ...attributes }, text);
  });
  const parts = [element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows)];
  if (caption) parts.unshift(element("caption", {}, caption));
  return element("div", { class: "scroll" }, element("table", {}, ...parts));
}

function showVerdict() {
  const section = byId("verdict");
  const tasks = report.tasks.filter((task) => task.sentence);
  section.hidden = tasks.length === 0;
  section.append(element("p", {}, explainUsable()));
  const titles = [
    "method",
    "learning rates (✓ usable)",
    ["decades", NUMBER],
    ["settings", { ...NUMBER, title: "usable of all that were tried" }],
  ];
  for (const task of tasks) {
    const note = known(task.perplexity) ? ` (perplexity ${short(task.perplexity)})` : "";
    section.append(
      element("h3", {}, task.name),
      element("p", {}, `${task.sentence} Best ${task.metric}: ${withUnit(task, write(task, task.best))}${note}.`),
      tableOf(titles, task.usable.map(verdictRow)),
    );
  }
}

function explainUsable() {
  const { accuracy, loss } = report.margins;
  const [points, share] = [`${short(100 * accuracy)} points`, `${short(100 * loss)} %`];
  const byLoss = report.tasks.some((task) => !isShare(task)) ? `, or its loss within ${share} if there is no accuracy,` : "";
  return (
    `A setting is usable if its accuracy is within ${points}${byLoss} of the best of all methods. ` +
    "Decades span the longest unbroken stretch of usable learning rates, each at the radius (or weight decay) that " +
    "suits it best."
  );
}

function verdictRow(result) {
  const chips = result.tried.map((lr) => {
    const works = result.lrs.includes(lr);
    return element("span", { class: works ? "chip usable" : "chip" }, works ? `✓ ${short(lr)}` : short(lr));
  });
  return element(
    "tr",
    {},
    element("th", { scope: "row" }, result.method),
    cell(element("div", { class: "chips" }, ...chips)),
    cell(result.lrs.length ? short(result.decades.toFixed(2)) : "–", NUMBER),
    cell(`${result.cells} / ${result.total}`, NUMBER),
  );
}

function showExperiments() {
  byId("experiments").hidden = report.experiments.length === 0;
  for (const experiment of report.experiments) {
    byId("experiments").append(
      element("h3", {}, `${experiment.title} (${experiment.source}), ${experiment.scale} scale`),
      ...explainScale(experiment),
      ...experiment.tables.map(shownTable),
    );
  }
}

function explainScale({ source, scale }) {
  if (source === "not in the paper") return [];
  const smaller =
    `The same question at the ${scale} scale: less data, smaller models or fewer epochs than in the paper, so that ` +
    "our numbers compare with each other, not with the paper’s.";
  return [element("p", {}, scale === "full" ? "The paper’s protocol." : smaller)];
}

// Cells between double stars are bold.
function shownTable(table) {
  const written = (text) => (text.startsWith("**") ? element("strong", {}, text.slice(2, -2)) : text);
  const rows = table.rows.map(([first, ...cells]) =>
    element("tr", {}, element("th", { scope: "row" }, first), ...cells.map((text) => cell(written(text), NUMBER))),
  );
  const [first, ...others] = table.head;
  return tableOf([first, ...others.map((title) => [title, NUMBER])], rows, table.title);
}
