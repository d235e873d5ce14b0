const data = JSON.parse($("data").textContent);
const state = { method: "borat", example: 0, rate: 0, size: 0, start: 0, step: 0 };
const METHODS = { borat: "BORAT and ALI-G", free: "FreeBORAT" };
const SLIDERS = ["rate", "size", "start", "step"];

// The current frame: the pieces, the constant one (its floor), the parabola (its width), and where each lane's marker goes

function boratFrame(example, size) {
  const lr = example.rates[state.rate], frames = example.frames[state.rate][state.size][state.start];
  const first = state.step - (state.step % (size - 1));
  const pieces = frames.slice(first, state.step + 1).map(([sample, point, loss, slope], i) => ({ name: i + 1, sample, point, loss, slope }));
  const [, , , , goal, kind, ...alpha] = frames[state.step];
  const centre = pieces[0].point, goals = { sgd: centre - lr * pieces[0].slope, alig: frames[first][4], borat: goal };
  const lane = (key, name, mark) => ({ key, name, mark, from: centre, to: goals[key], past: [] });
  return {
    pieces, alpha, kind, centre, goal, goals, floor: 0, width: lr,
    update: first / (size - 1) + 1,
    full: pieces.length === size - 1,
    lanes: [lane("sgd", "SGD", "triangle"), lane("alig", "ALI-G", "square"), lane("borat", `BORAT${size}`, "diamond")],
  };
}

function freeFrame(example, size) {
  const start = example.starts[state.start], batch = state.step + 1;
  const rows = example.free[state.size][state.start].map(([sample, loss, slope, target, width, z, x, y, ...model]) => {
    const alpha = model.slice(0, model.length / 2 + 1), older = model.slice(alpha.length);
    return { sample, slope, target, width, z, x, y, alpha, losses: [...older, loss] };
  });
  const points = [{ z: start, x: start, y: start }, ...rows];  // after each batch, and before the first
  const { alpha, losses, target, width } = rows[state.step], before = points[state.step], goals = points[batch];
  const pieces = rows.slice(0, batch).map(({ sample, slope }, i) => ({ name: i + 1, sample, point: points[i].y, slope }))
    .slice(1 - size).map((piece, i) => ({ ...piece, loss: losses[i] }));
  const lane = (key, mark) => ({
    key, name: key, mark, from: before[key], to: goals[key], past: points.slice(0, state.step).map((point) => point[key]),
  });
  return {
    pieces, alpha, batch, width, before, goals, centre: before.z, goal: goals.z, floor: target,
    lanes: [lane("z", "diamond"), lane("x", "square"), lane("y", "circle")],
  };
}

function current() {
  const example = data.examples[state.example], size = data.sizes[state.size];
  const frame = state.method === "free" ? freeFrame(example, size) : boratFrame(example, size);
  return { method: state.method, example, size, ...frame };
}

// Controls

function show() {
  const frame = current(), isFree = frame.method === "free";
  $("rate-value").textContent = number(frame.example.rates[state.rate]);
  $("size-value").textContent = `${frame.size}${frame.size === 2 && !isFree ? " (ALI-G)" : ""}`;
  $("start-value").textContent = number(frame.example.starts[state.start]);
  $("step-value").textContent = `${state.step + 1} of ${data.calls[frame.method]}`;
  for (const id of SLIDERS) $(id).setAttribute("aria-valuetext", $(`${id}-value`).textContent);
  for (const element of document.querySelectorAll("[data-only]")) element.hidden = element.dataset.only !== frame.method;
  tell(frame);
  draw(frame);
  drawLegend(frame);
}

function setSliders() {
  const example = data.examples[state.example];
  const counts = { rate: example.rates.length, size: data.sizes.length, start: example.starts.length, step: data.calls[state.method] };
  for (const id of SLIDERS) {
    $(id).max = counts[id] - 1;
    $(id).value = state[id];
  }
  show();
}

function chooseExample(index) {
  const [rate, size, start] = data.examples[index].first;
  Object.assign(state, { example: index, rate, size, start, step: 0 });
  setSliders();
}

function chooseMethod(method) {
  Object.assign(state, { method, step: 0 });
  setSliders();
}

function addChoice(place, name, value, text, isChecked, choose) {
  const label = document.createElement("label"), radio = document.createElement("input");
  Object.assign(radio, { type: "radio", name, id: `${name}-${value}`, checked: isChecked });
  radio.addEventListener("change", () => choose(value));
  label.append(radio, ` ${text}`);
  $(place).append(label);
}

data.examples.forEach((example, i) =>
  addChoice("examples", "example", i, `${example.name}: ${example.formula}`, i === 0, chooseExample));
for (const [method, name] of Object.entries(METHODS)) {
  addChoice("methods", "method", method, name, method === state.method, chooseMethod);
}
for (const id of SLIDERS) {
  $(id).addEventListener("input", () => {
    state[id] = Number($(id).value);
    if (id !== "step") state.step = $("step").value = 0;
    show();
  });
}
window.addEventListener("resize", show);
chooseExample(0);
