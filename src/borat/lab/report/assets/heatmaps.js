// The result over the learning rate and a second parameter: heatmaps, or lines and dots with fewer parameters.

const scaleColours = () => colourOf(report.scale);
const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255);

// Black or white, whichever is easier to read at this place of the scale.
function textColour(share) {
  const place = Math.min(3.999, 4 * share);
  const [low, high] = scaleColours().slice(Math.floor(place), Math.floor(place) + 2).map(channels);
  const mixed = low.map((value, i) => value + (place % 1) * (high[i] - value));
  const [red, green, blue] = mixed.map((value) => ((value + 0.055) / 1.055) ** 2.4);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 ? "#000000" : "#ffffff";
}

const HOVER = "%{customdata}<extra></extra>";

function describeCell(cell, task) {
  const lines = [plain(cell.label ?? `lr ${short(cell.lr)}`)];
  const seeds = cell.runs > 1 ? ` (${cell.runs} seeds)` : "";
  const result = withUnit(task, withSpread(cell.mean, cell.std, (value) => write(task, value)));
  if (known(cell.mean)) lines.push(`${task.metric} <b>${result}</b>${seeds}`);
  const all = cell.runs + cell.lost;
  if (cell.lost) lines.push(cell.runs ? `${cell.lost} of ${all} seeds ${cell.status}` : cell.status);
  return lines.join("<br>");
}

// From the worst to the best of all panels of a task: one scale for all.
function rangeOf(task) {
  const cells = Object.values(task.grid.panels).flat();
  const values = cells.map((cell) => cell.mean).filter(known);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const range = values.length ? [low, high > low ? high : low + 0.01] : [0, 1];
  return isShare(task) ? range : range.toReversed();
}

// Quality of a cell: 0 for the worst, 1 for the best.
const placeOf = (cell, range) => (cell.mean - range[0]) / (range[1] - range[0]);

function heatmapTrace(cells, task, range) {
  const { grid } = task;
  const table = () => grid.secondValues.map(() => grid.lrs.map(() => null));
  const [z, customdata] = [table(), table()];
  for (const cell of cells) {
    z[cell.row][cell.column] = cell.lost || !known(cell.mean) ? null : placeOf(cell, range);
    customdata[cell.row][cell.column] = describeCell(cell, task);
  }
  const colorscale = scaleColours().map((colour, i) => [i / 4, colour]);
  const look = { colorscale, zmin: 0, zmax: 1, showscale: false, xgap: 2, ygap: 2 };
  return { type: "heatmap", z, customdata, ...look, hovertemplate: HOVER, hoverongaps: false };
}

function labelTrace(cells, task, range) {
  const shown = cells.filter((cell) => !cell.lost && known(cell.mean));
  const colours = shown.map((cell) => textColour(placeOf(cell, range)));
  return {
    mode: "text",
    x: shown.map((cell) => cell.column),
    y: shown.map((cell) => cell.row),
    text: shown.map((cell) => write(task, cell.mean) + (known(cell.std) ? `<br>± ${write(task, cell.std)}` : "")),
    textfont: { size: 12, color: colours },
    hoverinfo: "skip",
  };
}

// A hatched box and a cross mark lost runs without relying on colour.
function lostTraces(cells, task) {
  const lost = cells.filter((cell) => cell.lost);
  const corners = (at, size, signs) => lost.flatMap((cell) => [...signs.map((sign) => cell[at] + sign * size), null]);
  const hatch = { shape: "/", size: 8, solidity: 0.12, fgcolor: variable("alarm") };
  const box = {
    mode: "lines",
    x: corners("column", 0.47, [-1, 1, 1, -1, -1]),
    y: corners("row", 0.45, [-1, -1, 1, 1, -1]),
    line: { width: 1, color: variable("alarm") },
    fill: "toself",
    fillcolor: "rgba(0,0,0,0)",
    fillpattern: hatch,
    hoverinfo: "skip",
  };
  const cross = {
    mode: "markers",
    x: lost.map((cell) => cell.column),
    y: lost.map((cell) => cell.row),
    marker: { symbol: "x", size: 13, color: variable("text"), line: { width: 2, color: variable("surface") } },
    customdata: lost.map((cell) => describeCell(cell, task)),
    hovertemplate: HOVER,
  };
  return [box, cross];
}

function drawHeatmap(target, found, task, range) {
  const { grid } = task;
  const place = (cell) => ({ column: grid.lrs.indexOf(cell.lr), row: grid.secondValues.indexOf(cell.second) });
  const cells = found.map((cell) => ({ ...cell, ...place(cell) })).filter((cell) => cell.column >= 0 && cell.row >= 0);
  const ticks = (values) => ({
    tickvals: values.map((_, i) => i),
    ticktext: values.map(short),
    range: [-0.5, values.length - 0.5],
    showgrid: false,
    ticks: "",
    fixedrange: true,
  });
  target.style.height = `${66 + 38 * Math.max(grid.secondValues.length, 2)}px`;
  plot(target, [heatmapTrace(cells, task, range), labelTrace(cells, task, range), ...lostTraces(cells, task)], {
    xaxis: axis("learning rate", ticks(grid.lrs)),
    yaxis: axis(grid.second, ticks(grid.secondValues)),
    hovermode: "closest",
  });
}

function addHeatmaps(section, task) {
  const range = rangeOf(task);
  const ramp = element("span", { class: "ramp", role: "img", "aria-label": "colour scale, darker is better" });
  drawThemed(() => (ramp.style.background = `linear-gradient(to right, ${scaleColours().join(", ")})`));
  const [low, high] = range.map((value) => withUnit(task, write(task, value)));
  const meaning = `${high}, darker is better; × diverged or failed, blank: not run`;
  section.append(element("p", { class: "scale" }, `${task.metric} ${low}`, ramp, meaning));
  const panels = section.appendChild(element("div", { class: "panels" }));
  for (const [method, cells] of Object.entries(task.grid.panels)) {
    const target = element("div", { class: "plot heatmap", role: "img", "aria-label": `Heatmap of ${method}` });
    panels.append(element("figure", {}, element("figcaption", {}, element("strong", {}, method)), target));
    drawThemed(() => drawHeatmap(target, cells, task, range));
  }
}

// Points with bars for the spread over seeds, along x or y.
function pointsOf(method, cells, task, direction) {
  const factor = isShare(task) ? 100 : 1;
  const values = cells.map((cell) => factor * cell.mean);
  const spread = { type: "data", array: cells.map((cell) => factor * (cell.std ?? 0)), thickness: 1.5 };
  return {
    [direction]: values,
    [`error_${direction}`]: { ...spread, visible: cells.some((cell) => known(cell.std)) },
    mode: "markers",
    customdata: cells.map((cell) => describeCell(cell, task)),
    hovertemplate: `${plain(method)}, ${HOVER}`,
  };
}

const crossOf = (colour) => ({ symbol: "x-thin", size: 10, line: { width: 2.5, color: colour } });

// Lost runs have no result: their crosses stand at the worse end.
function drawLines(target, task) {
  const worst = isShare(task) ? 0 : 1.05 * rangeOf(task)[0];
  const traces = Object.entries(task.grid.panels).flatMap(([method, cells]) => {
    const style = report.methods[method];
    const colour = colourOf(style);
    const finished = cells.filter((cell) => !cell.lost).sort((a, b) => a.lr - b.lr);
    const lost = cells.filter((cell) => cell.lost);
    const line = { mode: "lines+markers", line: { color: colour, dash: style.dash, width: 2 } };
    const marker = { symbol: style.marker, size: 9 };
    const ground = { y: lost.map(() => worst), marker: crossOf(colour), cliponaxis: false };
    return [
      { ...pointsOf(method, finished, task, "y"), ...line, marker, x: finished.map((cell) => cell.lr) },
      { ...pointsOf(method, lost, task, "y"), ...ground, x: lost.map((cell) => cell.lr) },
    ];
  });
  const rates = task.grid.lrs;
  plot(target, traces, {
    xaxis: axis("learning rate", { type: "log", tickvals: rates, ticktext: rates.map(short) }),
    yaxis: axis(axisTitle(task), isShare(task) ? { rangemode: "tozero" } : {}),
    hovermode: "closest",
  });
}

// One row for each method, with the crosses of lost runs at the worse edge.
function drawDots(target, task) {
  const methods = Object.keys(task.grid.panels);
  const finished = Object.values(task.grid.panels).flat().filter((cell) => !cell.lost && known(cell.mean));
  const factor = isShare(task) ? 100 : 1;
  const values = finished.map((cell) => factor * cell.mean);
  const [low, high] = values.length ? [Math.min(...values), Math.max(...values)] : [0, factor];
  const margin = 0.06 * Math.max(high - low, 0.01 * factor);
  const edge = isShare(task) ? low - margin : high + margin;
  const traces = methods.flatMap((method) => {
    const style = report.methods[method];
    const colour = colourOf(style);
    const cells = task.grid.panels[method];
    const dots = (test, marker, more = {}) => {
      const chosen = cells.filter(test);
      return { ...pointsOf(method, chosen, task, "x"), y: chosen.map(() => plain(method)), marker, ...more };
    };
    return [
      dots((cell) => !cell.best && !cell.lost, { symbol: "circle-open", size: 8, color: colour }),
      dots((cell) => cell.best && !cell.lost, { symbol: style.marker, size: 12, color: colour }),
      dots((cell) => cell.lost, crossOf(colour), { x: cells.map(() => edge), error_x: {} }),
    ];
  });
  target.style.height = `${90 + 26 * methods.length}px`;
  const rows = { type: "category", categoryorder: "array", categoryarray: methods.map(plain).reverse() };
  plot(target, traces, {
    xaxis: axis(axisTitle(task), { range: [low - 1.5 * margin, high + 1.5 * margin] }),
    yaxis: axis("", { ...rows, range: [-0.6, methods.length - 0.4] }),
    hovermode: "closest",
  });
}

function addPlot(section, task, draw, remark) {
  const target = element("div", { class: "plot" });
  section.append(element("p", { class: "remark" }, remark), element("figure", {}, target));
  drawThemed(() => draw(target, task));
}

function showHeatmaps() {
  const tasks = report.tasks.filter((task) => Object.keys(task.grid.panels).length);
  byId("heatmaps").hidden = tasks.length === 0;
  for (const task of tasks) {
    const section = byId("heatmaps").appendChild(element("div", {}, element("h3", {}, task.name)));
    if (task.grid.form === "heatmaps") addHeatmaps(section, task);
    if (task.grid.form === "lines") {
      section.append(legendOf(Object.keys(task.grid.panels)));
      addPlot(section, task, drawLines, "× diverged or failed; bars: standard deviation over seeds");
    }
    if (task.grid.form === "dots") {
      const edge = isShare(task) ? "left" : "right";
      const remark = `Filled: the best setting on validation data; open: the others; × diverged or failed, at the ${edge} edge`;
      addPlot(section, task, drawDots, remark);
    }
  }
}
