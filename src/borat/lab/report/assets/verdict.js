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
  const byLoss = report.tasks.some((task) => !isShare(task)) ? `, or its loss within ${share} where that decides,` : "";
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
      ...(experiment.tables.length
        ? experiment.tables.map(shownTable)
        : [element("p", {}, explainScale(experiment.scale)), experimentTable(experiment)]),
      ...claimsOf(experiment),
    );
  }
}

function explainScale(scale) {
  if (scale === "full") return "The paper’s protocol.";
  return (
    `The same question at the ${scale} scale: less data, smaller models or fewer epochs than in the paper, so that ` +
    "our numbers compare with each other, not with the paper’s."
  );
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

// Accuracies are shares between 0 and 1; ours have one decimal, the paper's as many as it prints.
function experimentTable(experiment) {
  const inPercent = experiment.metric.includes("accuracy");
  const number = inPercent ? percent : short;
  const printed = (value) => (known(value) ? short(inPercent ? 100 * value : value) : "–");
  const ours = (value) => {
    if (!known(value?.mean)) return "–";
    const several = value.runs > 1;
    return withSpread(value.mean, several ? value.std : null, number) + (several ? ` (${value.runs} runs)` : "");
  };
  const methods = [...new Set([...Object.keys(experiment.ours), ...Object.keys(experiment.paper)])];
  const rows = methods.map((method) => {
    const cells = experiment.columns.flatMap((column) => [
      cell(ours(experiment.ours[method]?.[column]), NUMBER),
      cell(printed(experiment.paper[method]?.[column]), NUMBER),
    ]);
    return element("tr", {}, element("th", { scope: "row" }, method), ...cells);
  });
  const titles = experiment.columns.flatMap((column) => [[`${column}, ours`, NUMBER], ["paper", NUMBER]]);
  const metric = experiment.metric.replaceAll("_", " ") + (inPercent ? " in %" : "");
  return tableOf(["method", ...titles], rows, `${metric}, ± standard deviation over seeds`);
}

function claimsOf(experiment) {
  const items = experiment.claims.map((claim) => {
    const entries = Object.entries(claim.numbers);
    const factor = claim.metric.endsWith("accuracy") ? 100 : 1;
    const numbers = entries.map(([name, value]) => `${name} ${known(value) ? short(factor * value) : "–"}`);
    const where = claim.column ? `${claim.column}: ` : "";
    const evidence = numbers.length ? ` (${where}${numbers.join(", ")})` : "";
    return element("li", {}, element("strong", {}, claim.verdict), `: ${claim.text}${evidence}`);
  });
  if (!items.length) return [];
  return [element("p", {}, "What the paper says, and whether these runs support it:"), element("ul", {}, ...items)];
}
