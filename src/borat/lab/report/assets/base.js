// Parts that all scripts share: the data, elements, numbers as text, and plots that follow the colour scheme.

const report = JSON.parse(document.getElementById("data").textContent);
const darkMode = matchMedia("(prefers-color-scheme: dark)");
const themed = [];

const byId = (id) => document.getElementById(id);

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

// Draw now, and again whenever the colour scheme changes.
function drawThemed(draw) {
  themed.push(draw);
  draw();
}
darkMode.addEventListener("change", () => themed.forEach((draw) => draw()));

const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const colourOf = (style) => (darkMode.matches ? style.dark : style.light);
const translucent = (hex, opacity) => hex + Math.round(255 * opacity).toString(16).padStart(2, "0");

// Plotly interprets a few tags in its texts, so names are escaped.
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

const known = (value) => value !== null && value !== undefined;
const decimals = (value, digits) => value.toFixed(digits).replace("-", "−");
const percent = (value, digits = 1) => (known(value) ? decimals(100 * value, digits) : "–");
const isShare = (task) => task.measure === "accuracy";
const write = (task, value) => (isShare(task) ? percent(value) : short(value));
const withUnit = (task, text) => (isShare(task) ? `${text} %` : text);
const axisTitle = (task, name = task.metric) => (isShare(task) ? `${name} (%)` : name);
function short(value) {
  if (!known(value)) return "none";
  const size = Math.abs(value);
  const inPowers = size !== 0 && (size >= 1e5 || size < 1e-4);
  const number = Number(value);
  const text = inPowers ? number.toExponential(2).replace(/\.?0*e\+?/, "e") : String(Number(number.toPrecision(4)));
  return text.replace("-", "−");
}

function withSpread(mean, std, write = percent) {
  return known(std) ? `${write(mean)} ± ${write(std)}` : write(mean);
}

function axis(title, more = {}) {
  const { title: _, ...rest } = more;
  return {
    title: { text: plain(title), standoff: 6, font: { size: 12 } },
    gridcolor: variable("grid"),
    linecolor: variable("line"),
    tickcolor: variable("line"),
    zeroline: false,
    automargin: true,
    ...rest,
  };
}

// Ticks at powers of ten, with 2 and 5 times them if few; Plotly's defaults within less than a decade.
function logAxis(title, traces) {
  const values = traces.flatMap((trace) => trace.y).filter((value) => value > 0);
  const [low, high] = values.length ? [Math.log10(Math.min(...values)), Math.log10(Math.max(...values))] : [-1, 0];
  const margin = 0.06 * Math.max(high - low, 0.3);
  const range = [low - margin, high + margin];
  const span = range[1] - range[0];
  if (span < 0.7) return axis(title, { type: "log", range, nticks: 6 });
  const steps = span > 2.2 ? [1] : [1, 2, 5];
  const every = Math.ceil(span / 8);
  const powers = [];
  for (let power = Math.floor(range[0]); power <= range[1]; power += every) powers.push(power);
  const tickvals = powers.flatMap((power) => steps.map((step) => step * 10 ** power));
  return axis(title, { type: "log", range, tickvals, ticktext: tickvals.map(short) });
}

function plot(target, traces, layout) {
  const text = { family: "system-ui, sans-serif", size: 12, color: variable("text") };
  const common = {
    font: text,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: variable("surface"),
    margin: { l: 50, r: 8, t: 8, b: 40 },
    hoverlabel: { bgcolor: variable("raised"), bordercolor: variable("line"), font: text, align: "left" },
    showlegend: false,
    // On a touch screen, a finger on a plot scrolls the page.
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
  };
  return Plotly.react(target, traces, { ...common, ...layout }, { displayModeBar: false, responsive: true });
}
