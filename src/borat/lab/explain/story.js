// The frame in words

function list(words) {
  return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words[words.length - 1]}`;
}

function tell(frame) {
  const { headline, parts } = frame.method === "free" ? tellFree(frame) : tellBorat(frame);
  $("headline").textContent = headline;
  $("story").textContent = parts.join(" ").replaceAll("ALI-G", "ALI\u2011G");  // not broken at its hyphen
  $("pieces").replaceChildren(...[...frame.pieces, null].map((piece, i) => {
    const row = document.createElement("tr");
    const cells = piece ? [piece.point, piece.loss, piece.slope].map((x) => number(x)) : ["everywhere", number(frame.floor), "0"];
    row.className = frame.alpha[i] > 0 ? "active" : "";
    row.append(cell("th", names(frame)[i]), ...cells.map((text) => cell("td", text)), cell("td", number(frame.alpha[i])));
    return row;
  }));
}

const names = (frame) => [...frame.pieces.map((piece) => `line ${piece.name}`), frame.method === "free" ? "the target" : "the bound"];
const active = (frame) => names(frame).filter((_, i) => frame.alpha[i] > 0);

function tellBorat(frame) {
  const { pieces, size, goals, centre, full, kind } = frame, n = pieces.length, used = active(frame);
  const parts = [`The model knows ${n === 1 ? "one line" : `${n} lines`} and the bound.`];
  if (used.length === 1 && used[0] === "the bound") {
    parts.push("All weight is on the bound: the loss is as low as it can be, so nothing moves.");
  } else if (used.length === 1) {
    parts.push(`All weight is on ${used[0]}: a full gradient step of length η times its slope, ` +
      `${n > 1 && used[0] !== "line 1" ? "but with the slope found at the trial point" : "as SGD does it"}.`);
  } else {
    parts.push(`Its lowest point is where ${list(used)} meet: the step ends there, however large η is.`);
  }
  parts.push(full
    ? `The bundle is full: the weight moves from ${number(centre)} to ${number(goals.borat)}${size < 4 ? ` (kind ${kind})` : ""}.`
    : `The bundle is incomplete: the next batch is measured at the trial point ${number(goals.borat)}.`);
  if (full && size > 2) {
    const gap = Math.abs(goals.alig - goals.borat);
    parts.push(gap < 1e-6 ? "ALI-G, which only knows line 1, would go to the same place."
      : `ALI-G, which only knows line 1, would go to ${number(goals.alig)}.`);
  }
  parts.push(`SGD would go to ${number(goals.sgd)}.`);
  return { headline: `${size === 2 ? "ALI-G" : `BORAT${size}`}, update ${frame.update}: batch ${n} of ${size - 1}`, parts };
}

function tellFree(frame) {
  const { pieces, batch, floor, centre, goals, before } = frame, used = active(frame);
  const newest = pieces[pieces.length - 1], headline = `FreeBORAT with N = ${frame.size}, batch ${batch}`;
  const parts = [`Line ${batch} was measured at y = ${number(newest.point)}.`];
  if (used.length === 1 && used[0] === "the target") {
    parts.push("The loss is flat there, so z stays.");
  } else {
    parts.push(`At the centre z = ${number(centre)} its height is ${number(height(newest, centre))}. The target is lower, at ${number(floor)}: ` +
      "by half of the measured gap, or less in the first batches.");
    parts.push(used.length > 1 ? `The lowest point of the model is where ${list(used)} meet: z jumps there, to ${number(goals.z)}.`
      : `All weight is on ${used[0]}: z goes as far as the cap allows, to ${number(goals.z)}.`);
  }
  parts.push(batch === 1 ? "The average x starts there."
    : `The average x follows by 2/${batch + 1} of its distance to z, from ${number(before.x)} to ${number(goals.x)}.`);
  parts.push(`The next batch is measured at y = ${number(goals.y)}, a tenth of the way from x to z.`);
  return { headline, parts };
}

function cell(kind, text) {
  const made = document.createElement(kind);
  if (kind === "th") made.scope = "row";
  made.textContent = text;
  return made;
}
