"use strict";
const $ = (id) => document.getElementById(id);

// Numbers and words

function number(x, digits = 4) {
  if (Math.abs(x) < 0.5 * 10 ** -digits) return "0";
  if (Math.abs(x) >= 1e4) return x.toExponential(2).replace("-", "−").replace("e+", "e");
  return String(Number(x.toFixed(digits))).replace("-", "−");
}

// The model

const height = (piece, w) => piece.loss + piece.slope * (w - piece.point);
const highest = (frame, w) => Math.max(frame.floor, ...frame.pieces.map((piece) => height(piece, w)));
const isStill = (frame) => !(frame.width > 0);  // no parabola: the step is none
const proximal = (frame, w) => highest(frame, w) + (isStill(frame) ? 0 : (w - frame.centre) ** 2 / (2 * frame.width));

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

const CONSTANT = { borat: "bound", free: "target" };
const GOAL = { borat: "borat", free: "z" };

function draw(frame) {
  const svg = $("plot"), width = Math.max(svg.clientWidth, 280);
  const area = { left: 46, right: width - 14, top: 14, bottom: Math.min(Math.max(width * 0.45, 240), 400) };
  const lanes = area.bottom + 48, laneHeight = 24, total = lanes + laneHeight * frame.lanes.length + 6;
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
  const level = (v, className) => inside.append(shape("line", { x1: area.left, x2: area.right, y1: y(v), y2: y(v), class: className }));
  if (frame.method === "free") level(0, "line bound");
  level(frame.floor, `line ${CONSTANT[frame.method]}${frame.alpha[frame.alpha.length - 1] > 0 ? " active" : ""}`);
  frame.pieces.forEach((piece, i) => inside.append(shape("line", {
    x1: x(low), x2: x(high), y1: y(height(piece, low)), y2: y(height(piece, high)),
    class: `line sample${piece.sample}${frame.alpha[i] > 0 ? " active" : ""}`,
  })));
  inside.append(shape("path", { d: path((w) => highest(frame, w)), class: "highest" }));
  if (!isStill(frame)) inside.append(shape("path", { d: path((w) => proximal(frame, w)), class: "proximal" }));

  const inWindow = (w) => w >= low && w <= high;
  const guide = (w, v) => guides.append(shape("line", { x1: x(w), x2: x(w), y1: y(v), y2: total - 6, class: "guide" }));
  if (inWindow(frame.centre)) guide(frame.centre, frame.method === "free" ? highest(frame, frame.centre) : frame.pieces[0].loss);
  const goal = frame.goal, lowest = proximal(frame, goal);
  if (inWindow(goal)) guide(goal, Math.min(lowest, top));
  frame.pieces.forEach((piece) => {
    if (!inWindow(piece.point) || piece.loss > top) return;
    above.append(marker("circle", x(piece.point), y(piece.loss), `spot sample${piece.sample}`, piece.name > 9 ? 9 : 8));
    above.append(shape("text", { x: x(piece.point), y: y(piece.loss) + 4, class: "digit" }, String(piece.name)));
  });
  if (inWindow(goal) && lowest <= top) above.append(marker("diamond", x(goal), y(lowest), `spot ${GOAL[frame.method]}`, 6));

  frame.lanes.forEach(({ key, name, mark, to, past, ...lane }, i) => {
    const level = lanes + laneHeight * (i + 0.5), from = clamp(lane.from, low, high), shown = clamp(to, low, high), off = shown !== to;
    above.append(shape("line", { x1: area.left, x2: area.right, y1: level, y2: level, class: "lane" }));
    for (const w of past.filter(inWindow)) above.append(marker("circle", x(w), level, `${key} past`, 2.5));
    above.append(shape("line", { x1: x(from), x2: x(shown), y1: level, y2: level, class: key, "stroke-width": 2.5 }));
    above.append(marker("circle", x(from), level, "spot centre", 4));
    above.append(off ? marker("triangle", 0, 0, key, 6) : marker(mark, x(shown), level, key, 6));
    if (off) above.lastChild.setAttribute("transform", `translate(${x(shown)} ${level}) rotate(${to < low ? -90 : 90})`);
    const right = x(shown) < area.right - 130;
    above.append(shape("text", {
      x: x(shown) + (right ? 13 : -13), y: level - 5, "text-anchor": right ? "start" : "end", "data-method": key,
    }, `${name} ${number(to)}`));
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
  const isFree = frame.method === "free", several = frame.example.samples.length > 1;
  $("legend").replaceChildren(
    ...frame.example.samples.map((_, i) => swatch(`sample sample${i}`, several ? `loss of sample ${i + 1}` : "loss")),
    swatch("line active sample0", several ? "lines, in the sample's colour" : "lines"), 
    ...(isFree ? [swatch("line active target", "target")] : []), swatch("line active bound", "bound"),
    swatch("highest", "highest of them"), swatch("proximal", "proximal model"),
    swatch("spot sample0", "where they were measured", "circle"), 
    swatch(`spot ${GOAL[frame.method]}`, isFree ? "its lowest point, the next z" : "its lowest point", "diamond"),
    ...(isFree ? [swatch("x", "average x", "square"), swatch("y", "next y", "circle")] : []));
}

