"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const state = { example: 0, rate: 0, size: 0, start: 0, step: 0 };
const METHODS = [["sgd", "SGD", "triangle"], ["alig", "ALI-G", "square"], ["borat", "BORAT", "diamond"]];

// Numbers and words

function number(x, digits = 4) {
  if (Math.abs(x) < 0.5 * 10 ** -digits) return "0";
  if (Math.abs(x) >= 1e4) return x.toExponential(2).replace("-", "−").replace("e+", "e");
  return String(Number(x.toFixed(digits))).replace("-", "−");
}

function list(words) {
  return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words[words.length - 1]}`;
}

// The current frame: the open bundle, and where each method goes from its centre

function current() {
  const example = data.examples[state.example];
  const size = data.sizes[state.size], lr = example.rates[state.rate];
  const frames = example.frames[state.rate][state.size][state.start];
  const first = state.step - (state.step % (size - 1));
  const pieces = frames.slice(first, state.step + 1).map(([sample, point, loss, slope]) => ({ sample, point, loss, slope }));
  const [, , , , goal, kind, ...alpha] = frames[state.step];
  const centre = pieces[0].point;
  return {
    example, size, lr, pieces, alpha, kind, centre,
    update: first / (size - 1) + 1,
    full: pieces.length === size - 1,
    goals: { sgd: centre - lr * pieces[0].slope, alig: frames[first][4], borat: goal },
  };
}

const height = (piece, w) => piece.loss + piece.slope * (w - piece.point);
const highest = (frame, w) => Math.max(0, ...frame.pieces.map((piece) => height(piece, w)));
const proximal = (frame, w) => highest(frame, w) + (w - frame.centre) ** 2 / (2 * frame.lr);

// The story of the frame

function tell(frame) {
  const { pieces, alpha, size, goals, lr, centre, full, kind } = frame;
  const n = pieces.length, names = pieces.map((_, i) => `line ${i + 1}`).concat("the bound");
  const active = names.filter((_, i) => alpha[i] > 0);
  const what = size === 2 ? "ALI-G" : `BORAT${size}`;
  $("headline").textContent = `${what}, update ${frame.update}: batch ${n} of ${size - 1}`;
  const parts = [`The model knows ${n === 1 ? "one line" : `${n} lines`} and the bound.`];
  if (active.length === 1 && active[0] === "the bound") {
    parts.push("All weight is on the bound: the loss is as low as it can be, so nothing moves.");
  } else if (active.length === 1) {
    parts.push(`All weight is on ${active[0]}: a full gradient step of length η times its slope, ` +
      `${n > 1 && active[0] !== "line 1" ? "but with the slope found at the trial point" : "as SGD does it"}.`);
  } else {
    parts.push(`Its lowest point is where ${list(active)} meet: the step ends there, however large η is.`);
  }
  parts.push(full
    ? `The bundle is full: the weight moves from ${number(centre)} to ${number(goals.borat)}${size < 4 ? ` (kind ${kind})` : ""}.`
    : `The bundle has room: the next batch is measured at the trial point ${number(goals.borat)}.`);
  if (full && size > 2) {
    const gap = Math.abs(goals.alig - goals.borat);
    parts.push(gap < 1e-6 ? "ALI-G, which only knows line 1, would go to the same place."
      : `ALI-G, which only knows line 1, would go to ${number(goals.alig)}.`);
  }
  parts.push(`SGD would go to ${number(goals.sgd)}.`);
  $("story").textContent = parts.join(" ").replaceAll("ALI-G", "ALI\u2011G");  // not broken at its hyphen
  $("pieces").replaceChildren(...names.map((name, i) => {
    const row = document.createElement("tr"), piece = pieces[i];
    const cells = piece ? [piece.point, piece.loss, piece.slope].map((x) => number(x)) : ["everywhere", "0", "0"];
    row.className = alpha[i] > 0 ? "active" : "";
    row.append(cell("th", name), ...cells.map((text) => cell("td", text)), cell("td", number(alpha[i])));
    return row;
  }));
}

function cell(kind, text) {
  const made = document.createElement(kind);
  if (kind === "th") made.scope = "row";
  made.textContent = text;
  return made;
}

// The drawing

function shape(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function marker(kind, x, y, className, r = 6) {
  const points = {
    triangle: [[0, -r], [r, r * 0.8], [-r, r * 0.8]],
    square: [[-r, -r], [r, -r], [r, r], [-r, r]].map(([a, b]) => [a * 0.85, b * 0.85]),
    diamond: [[0, -r], [r, 0], [0, r], [-r, 0]].map(([a, b]) => [a * 1.2, b * 1.2]),
  }[kind];
  if (!points) return shape("circle", { cx: x, cy: y, r, class: className });
  return shape("polygon", { points: points.map(([a, b]) => `${x + a},${y + b}`).join(" "), class: className });
}

function ticks(low, high, wanted) {
  const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
  const gap = [1, 2, 5, 10].map((m) => m * power).find((m) => m >= rough);
  const found = [];
  for (let k = Math.ceil(low / gap - 1e-9); k * gap <= high + 1e-9; k++) found.push(k * gap);
  return found;
}

function draw(frame) {
  const svg = $("plot"), width = Math.max(svg.clientWidth, 280);
  const area = { left: 46, right: width - 14, top: 14, bottom: Math.min(Math.max(width * 0.45, 240), 400) };
  const lanes = area.bottom + 48, laneHeight = 24, total = lanes + laneHeight * METHODS.length + 6;
  const [low, high] = frame.example.window, top = frame.example.highest, floor = -0.09 * top;
  const x = (w) => area.left + (w - low) / (high - low) * (area.right - area.left);
  const y = (v) => area.bottom - (v - floor) / (top - floor) * (area.bottom - area.top);
  const path = (f, count = 240) => "M" + Array.from({ length: count + 1 }, (_, i) => {
    const w = low + (high - low) * i / count;
    return `${x(w).toFixed(1)},${y(Math.min(f(w), 50 * top)).toFixed(1)}`;
  }).join("L");
  const curve = (values) => "M" + values.map((v, i) =>
    `${x(low + (high - low) * i / (values.length - 1)).toFixed(1)},${y(v).toFixed(1)}`).join("L");

  svg.setAttribute("viewBox", `0 0 ${width} ${total}`);
  svg.setAttribute("height", total);
  const clip = shape("clipPath", { id: "area" });
  clip.append(shape("rect", { x: area.left, y: area.top, width: area.right - area.left, height: area.bottom - area.top }));
  const guides = shape("g", {}), axis = shape("g", { class: "axis" }), inside = shape("g", { "clip-path": "url(#area)" }), above = shape("g", {});
  for (const w of ticks(low, high, width < 500 ? 5 : 8)) {
    axis.append(shape("line", { x1: x(w), x2: x(w), y1: area.top, y2: area.bottom, class: "grid" }));
    axis.append(shape("line", { x1: x(w), x2: x(w), y1: lanes, y2: total - 6, class: "grid" }));
    axis.append(shape("text", { x: x(w), y: area.bottom + 16, "text-anchor": "middle", class: "soft" }, number(w, 2)));
  }
  for (const v of ticks(0, top, 5)) {
    axis.append(shape("line", { x1: area.left - 4, x2: area.left, y1: y(v), y2: y(v) }));
    axis.append(shape("text", { x: area.left - 7, y: y(v) + 4, "text-anchor": "end", class: "soft" }, number(v, 3)));
  }
  axis.append(shape("path", { d: `M${area.left},${area.top}V${area.bottom}H${area.right}` }));
  axis.append(shape("text", { x: area.right, y: area.bottom + 32, "text-anchor": "end", class: "soft" }, "weight w"));
  axis.append(shape("text", { x: area.left + 6, y: area.top + 10, class: "soft" }, "loss"));

  const last = frame.pieces[frame.pieces.length - 1];
  frame.example.samples.forEach((values, i) => inside.append(
    shape("path", { d: curve(values), class: `sample sample${i}${i === last.sample ? "" : " away"}` })));
  const bound = frame.alpha[frame.alpha.length - 1] > 0 ? "line bound active" : "line bound";
  inside.append(shape("line", { x1: area.left, x2: area.right, y1: y(0), y2: y(0), class: bound }));
  frame.pieces.forEach((piece, i) => inside.append(shape("line", {
    x1: x(low), x2: x(high), y1: y(height(piece, low)), y2: y(height(piece, high)),
    class: `line sample${piece.sample}${frame.alpha[i] > 0 ? " active" : ""}`,
  })));
  inside.append(shape("path", { d: path((w) => highest(frame, w)), class: "highest" }));
  inside.append(shape("path", { d: path((w) => proximal(frame, w)), class: "proximal" }));

  const inWindow = (w) => w >= low && w <= high;
  const guide = (w, v) => guides.append(shape("line", { x1: x(w), x2: x(w), y1: y(v), y2: total - 6, class: "guide" }));
  if (inWindow(frame.centre)) guide(frame.centre, frame.pieces[0].loss);
  const goal = frame.goals.borat, lowest = proximal(frame, goal);
  if (inWindow(goal)) guide(goal, Math.min(lowest, top));
  frame.pieces.forEach((piece, i) => {
    if (!inWindow(piece.point) || piece.loss > top) return;
    above.append(marker("circle", x(piece.point), y(piece.loss), `spot sample${piece.sample}`, 8));
    above.append(shape("text", { x: x(piece.point), y: y(piece.loss) + 4, class: "digit" }, String(i + 1)));
  });
  if (inWindow(goal) && lowest <= top) above.append(marker("diamond", x(goal), y(lowest), "spot borat", 6));

  METHODS.forEach(([key, name, kind], i) => {
    const level = lanes + laneHeight * (i + 0.5), target = frame.goals[key], from = clamp(frame.centre, low, high);
    const shown = clamp(target, low, high), off = shown !== target;
    above.append(shape("line", { x1: area.left, x2: area.right, y1: level, y2: level, class: "lane" }));
    above.append(shape("line", { x1: x(from), x2: x(shown), y1: level, y2: level, class: key, "stroke-width": 2.5 }));
    above.append(marker("circle", x(from), level, "spot centre", 4));
    above.append(off ? marker("triangle", 0, 0, key, 6) : marker(kind, x(shown), level, key, 6));
    if (off) above.lastChild.setAttribute("transform", `translate(${x(shown)} ${level}) rotate(${target < low ? -90 : 90})`);
    const right = x(shown) < area.right - 130, label = `${key === "borat" ? name + frame.size : name} ${number(target)}`;
    above.append(shape("text", {
      x: x(shown) + (right ? 13 : -13), y: level - 5, "text-anchor": right ? "start" : "end", "data-method": key,
    }, label));
  });
  svg.replaceChildren(shape("defs", {}), guides, axis, inside, above);
  svg.firstChild.append(clip);
}

const clamp = (v, low, high) => Math.min(Math.max(v, low), high);

function drawLegend(frame) {
  const swatch = (className, text, kind) => {
    const item = document.createElement("li"), icon = shape("svg", { viewBox: "0 0 30 14", "aria-hidden": "true" });
    icon.append(kind ? marker(kind, 15, 7, className, 5) : shape("line", { x1: 1, x2: 29, y1: 7, y2: 7, class: className }));
    item.append(icon, text);
    return item;
  };
  const several = frame.example.samples.length > 1;
  $("legend").replaceChildren(
    ...frame.example.samples.map((_, i) => swatch(`sample sample${i}`, several ? `loss of sample ${i + 1}` : "loss")),
    swatch("line active sample0", several ? "lines, in the sample's colour" : "lines"), swatch("line active bound", "bound"),
    swatch("highest", "highest of them"), swatch("proximal", "proximal model"),
    swatch("spot sample0", "where they were measured", "circle"), swatch("spot borat", "its lowest point", "diamond"));
}

// Controls

function show() {
  const frame = current();
  const example = frame.example;
  $("rate-value").textContent = number(frame.lr);
  $("size-value").textContent = `${frame.size}${frame.size === 2 ? " (ALI-G)" : ""}`;
  $("start-value").textContent = number(example.starts[state.start]);
  $("step-value").textContent = `${state.step + 1} of ${data.calls}`;
  for (const id of ["rate", "size", "start", "step"]) $(id).setAttribute("aria-valuetext", $(`${id}-value`).textContent);
  tell(frame);
  draw(frame);
  drawLegend(frame);
}

function choose(index) {
  const example = data.examples[index];
  Object.assign(state, { example: index, rate: example.first[0], size: example.first[1], start: example.first[2], step: 0 });
  for (const [id, count] of [["rate", example.rates.length], ["size", data.sizes.length], ["start", example.starts.length],
    ["step", data.calls]]) {
    $(id).max = count - 1;
    $(id).value = state[id];
  }
  show();
}

data.examples.forEach((example, i) => {
  const label = document.createElement("label"), radio = document.createElement("input");
  Object.assign(radio, { type: "radio", name: "example", id: `example-${i}`, checked: i === 0 });
  radio.addEventListener("change", () => choose(i));
  label.append(radio, ` ${example.name}: ${example.formula}`);
  $("examples").append(label);
});
for (const id of ["rate", "size", "start", "step"]) {
  $(id).addEventListener("input", () => {
    state[id] = Number($(id).value);
    if (id !== "step") state.step = $("step").value = 0;
    show();
  });
}
window.addEventListener("resize", show);
choose(0);
