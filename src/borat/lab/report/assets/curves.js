// Curves over the epochs for the settings that the reader chooses.

const SYMBOLS = {
  circle: "●",
  square: "■",
  "triangle-up": "▲",
  diamond: "◆",
  "triangle-down": "▼",
  pentagon: "⬟",
  star: "★",
  hexagon: "⬢",
};
const DASH_ARRAYS = { solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3" };

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function swatch(style) {
  const line = svg("line", { x1: 0, x2: 34, y1: 7, y2: 7, "stroke-dasharray": DASH_ARRAYS[style.dash] });
  const mark = svg("text", { x: 17, y: 12 }, SYMBOLS[style.marker]);
  const colours = `--light:${style.light};--dark:${style.dark}`;
  return svg("svg", { class: "swatch", style: colours, "aria-hidden": "true" }, line, mark);
}

function legendOf(methods) {
  const entry = (method) => element("span", { class: "entry" }, swatch(report.methods[method]), method);
  return element("div", { class: "legend" }, ...methods.map(entry));
}

// Of one method, the learning rate decides the colour and the marker, the rest the dash; else the method decides all.
function styleOf(setting, task, ofOneMethod) {
  if (!ofOneMethod) return report.methods[setting.method];
  const settings = task.settings.filter((other) => other.method === setting.method);
  const lrs = [...new Set(settings.map((other) => other.lr))];
  const same = settings.filter((other) => other.lr === setting.lr);
  const look = report.palette[lrs.indexOf(setting.lr) % report.palette.length];
  return { ...look, dash: report.dashes[same.indexOf(setting) % report.dashes.length] };
}

// Choices of the reader: the best of each method, all settings of one method, or all methods at the same place.
function choicesOf(task) {
  const those = (test) => task.settings.filter(test);
  const all = (key) => [...new Set(task.settings.map((setting) => setting[key]))];
  const ofMethods = all("method").map((method) => ({
    name: `all settings of ${method}`,
    settings: those((setting) => setting.method === method),
    ofOneMethod: true,
  }));
  const atPlaces = all("label").map((label) => ({
    name: `all methods at ${label}`,
    settings: those((setting) => setting.label === label),
  }));
  const best = { name: "best setting of each method", settings: those((setting) => setting.best), ofBest: true };
  return [best, ...ofMethods, ...atPlaces.filter((choice) => choice.settings.length > 1)];
}

// The mean over the seeds, a band of one standard deviation, and a cross where a run diverged or failed.
function linesOf({ setting, style, name }, key, factor) {
  const { mean, std } = setting.curves[key];
  const epochs = mean.map((_, i) => i + 1);
  const colour = colourOf(style);
  const label = plain(name);
  const shifted = (sign) => mean.map((value, i) => (known(value) ? factor * (value + sign * (std?.[i] ?? 0)) : null));
  const line = {
    x: epochs,
    y: shifted(0),
    mode: "lines+markers",
    line: { color: colour, dash: style.dash, width: 2 },
    marker: { symbol: style.marker, size: 8, maxdisplayed: 12 },
    hovertemplate: `${label}<br>epoch %{x}: %{y:.4~g}<extra></extra>`,
  };
  const band = {
    x: [...epochs, ...epochs.toReversed()],
    y: [...shifted(1), ...shifted(-1).toReversed()],
    mode: "lines",
    line: { width: 0 },
    fill: "toself",
    fillcolor: translucent(colour, 0.18),
    hoverinfo: "skip",
  };
  const last = mean.findLastIndex(known);
  const end = {
    x: [last + 1],
    y: [factor * mean[last]],
    mode: "markers",
    marker: { symbol: "x-thin", size: 14, line: { width: 3, color: colour } },
    hovertemplate: `${label}<br>${setting.status} after epoch ${last + 1}<extra></extra>`,
  };
  return [...(std ? [band] : []), line, ...(setting.lost && last >= 0 ? [end] : [])];
}

function drawCurves(items, task) {
  const shown = items.filter((item) => !item.hidden);
  const epochs = Math.max(1, ...items.map((item) => item.setting.curves.train_loss.mean.length));
  const range = [epochs > 1 ? 0.7 : 0, epochs + 0.3 + 0.02 * epochs];
  const draw = (key, makeAxis, factor = 1) => {
    const traces = shown.flatMap((item) => linesOf(item, key, factor));
    const xaxis = axis("epoch", { range, ...(epochs < 8 ? { dtick: 1 } : {}) });
    plot(byId(`plot-${key}`), traces, { xaxis, yaxis: makeAxis(traces), hovermode: "closest" });
  };
  draw("train_loss", (traces) => logAxis("training loss", traces));
  const name = `validation ${task.measure}`;
  byId("validation-caption").textContent = name[0].toUpperCase() + name.slice(1);
  draw("validation", () => axis(axisTitle(task, name)), isShare(task) ? 100 : 1);
  const withSteps = items.some((item) => item.setting.curves.step_size.mean.some(known));
  byId("step-sizes").hidden = !withSteps;
  if (withSteps) draw("step_size", (traces) => logAxis("step size", traces));
}

function legendButton(item, draw) {
  const button = element("button", { type: "button", "aria-pressed": "true" }, swatch(item.style), item.name);
  button.addEventListener("click", () => {
    item.hidden = !item.hidden;
    button.setAttribute("aria-pressed", String(!item.hidden));
    draw();
  });
  return button;
}

function remarkOn(choice, task) {
  const remarks = [];
  if (choice.settings.some((setting) => setting.seeds > 1)) {
    remarks.push("Lines are means over the seeds, bands ± one standard deviation.");
  }
  if (choice.settings.some((setting) => setting.lost)) remarks.push("× marks where a run diverged or failed.");
  if (choice.ofBest) {
    const extreme = isShare(task) ? "highest" : "lowest";
    remarks.push(`The best setting has the ${extreme} validation ${task.measure} after the last epoch.`);
  }
  return remarks.join(" ");
}

function showCurves() {
  const tasks = report.tasks.filter((task) => task.settings.some((setting) => setting.curves.train_loss.mean.length));
  byId("curves").hidden = tasks.length === 0;
  if (!tasks.length) return;
  const [taskSelect, choiceSelect] = [byId("curves-task"), byId("curves-choice")];
  const fill = (select, entries) => {
    select.replaceChildren(...entries.map((entry, i) => element("option", { value: i }, entry.name)));
  };
  let redraw;
  const choose = () => {
    const task = tasks[taskSelect.value];
    const choice = choicesOf(task)[choiceSelect.value];
    const items = choice.settings.map((setting) => ({
      setting,
      hidden: false,
      style: styleOf(setting, task, choice.ofOneMethod),
      name: choice.ofOneMethod ? setting.label : `${setting.method}, ${setting.label}`,
    }));
    byId("curves-legend").replaceChildren(...items.map((item) => legendButton(item, () => drawCurves(items, task))));
    byId("curves-remark").textContent = remarkOn(choice, task);
    const drawAllKinds = showKinds(choice.settings);
    redraw = () => {
      drawCurves(items, task);
      drawAllKinds();
    };
    redraw();
  };
  const chooseTask = () => {
    fill(choiceSelect, choicesOf(tasks[taskSelect.value]));
    choose();
  };
  fill(taskSelect, tasks);
  byId("curves-task-label").hidden = tasks.length < 2;
  taskSelect.addEventListener("change", chooseTask);
  choiceSelect.addEventListener("change", choose);
  chooseTask();
  themed.push(() => redraw());
}
