// The shares of the kinds of steps over the epochs: colours, and hatches for colour-blind readers.

const MOST_PANELS = 12;
const RISING = [[-4, 14, 10, 0], [4, 14, 18, 0], [12, 14, 26, 0]];
const FALLING = RISING.map(([x1, y1, x2, y2]) => [x1, y2, x2, y1]);
const LEVEL = [[0, 4, 26, 4], [0, 10, 26, 10]];
const UPRIGHT = [[6, 0, 6, 14], [13, 0, 13, 14], [20, 0, 20, 14]];
const DOTS = [[4, 7, 6, 7], [12, 7, 14, 7], [20, 7, 22, 7]];
const STROKES = {
  "": [],
  "/": RISING,
  "\\": FALLING,
  x: [...RISING, ...FALLING],
  "-": LEVEL,
  "|": UPRIGHT,
  "+": [...LEVEL, ...UPRIGHT],
  ".": DOTS,
};

// Prepare the panels of some settings; the function that is returned draws them.
function showKinds(settings) {
  const shown = settings.filter((setting) => Object.keys(setting.kinds).length).slice(0, MOST_PANELS);
  const kinds = Object.keys(report.kinds).filter((kind) => shown.some((setting) => setting.kinds[kind]));
  const swatches = kinds.map(() => element("canvas", { width: 26, height: 14, "aria-hidden": "true" }));
  const targets = shown.map(() => element("div", { class: "plot" }));
  const figures = shown.map((setting, i) => {
    const caption = element("figcaption", {}, element("strong", {}, setting.method), `, ${setting.label}`);
    return element("figure", {}, caption, targets[i]);
  });
  byId("kinds").hidden = shown.length === 0;
  byId("kinds-legend").replaceChildren(...kinds.map((kind, i) => element("span", { class: "entry" }, swatches[i], kind)));
  byId("kinds-panels").replaceChildren(...figures);
  return () => {
    swatches.forEach((canvas, i) => drawSwatch(canvas, report.kinds[kinds[i]]));
    shown.forEach((setting, i) => drawKinds(targets[i], setting, kinds));
  };
}

function drawSwatch(canvas, style) {
  const pen = canvas.getContext("2d");
  pen.fillStyle = colourOf(style);
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.strokeStyle = variable("page");
  pen.lineWidth = 1.5;
  pen.beginPath();
  for (const [x1, y1, x2, y2] of STROKES[style.hatch]) {
    pen.moveTo(x1, y1);
    pen.lineTo(x2, y2);
  }
  pen.stroke();
}

// Steps from epoch to epoch: a sloping area would need two epochs to be seen.
function drawKinds(target, setting, kinds) {
  const epochs = Object.values(setting.kinds)[0].length;
  const traces = kinds.filter((kind) => setting.kinds[kind]).map((kind) => {
    const shares = setting.kinds[kind].map((share) => 100 * share);
    const style = report.kinds[kind];
    const colour = colourOf(style);
    return {
      x: [...shares.keys(), epochs].map((i) => i + 0.5),
      y: [...shares, shares.at(-1)],
      customdata: [...shares.keys(), epochs - 1].map((i) => i + 1),
      stackgroup: "all",
      mode: "lines",
      line: { shape: "hv", width: 0.5, color: colour },
      fillcolor: colour,
      fillpattern: { shape: style.hatch, fgcolor: variable("page"), bgcolor: colour, size: 8, solidity: 0.25 },
      hovertemplate: `epoch %{customdata}: %{y:.1f} %<extra>${plain(kind)}</extra>`,
    };
  });
  const xaxis = axis("epoch", { range: [0.5, epochs + 0.5], showgrid: false, ...(epochs < 8 ? { dtick: 1 } : {}) });
  plot(target, traces, { xaxis, yaxis: axis("share of updates (%)", { range: [0, 100] }), hovermode: "x" });
}
