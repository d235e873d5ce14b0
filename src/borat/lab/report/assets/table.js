// The table of runs: sorted by a click on a column, filtered, and with seeds grouped on demand.

const ANY = "all";

function writeCell(column, value) {
  if (Array.isArray(value)) return withSpread(value[0], value[1], (number) => writeCell(column, number));
  if (!known(value)) return column.key === "radius" ? "none" : "–";
  if (typeof value === "string") return value;
  if (column.kind === "percent") return percent(value, 2);
  if (column.kind === "seconds") return value < 100 ? `${value.toFixed(1)} s` : `${Math.round(value)} s`;
  return column.kind === "whole" ? String(Math.round(value)) : short(value);
}

// Numbers by value, text in natural order; missing values come last in both directions.
function compare(a, b, direction) {
  if (!known(a) || !known(b)) return Number(known(b)) - Number(known(a));
  if (typeof a === "number" && typeof b === "number") return direction * (a - b);
  return direction * String(a).localeCompare(String(b), "en", { numeric: true });
}

class RunTable {
  constructor({ columns, runs, settings }) {
    Object.assign(this, { columns, runs, settings, sort: null, direction: 1, grouped: false, search: "", filters: {} });
    this.headers = columns.map((column, i) => this.makeHeader(column, i));
    byId("runs-table").tHead.append(element("tr", {}, ...this.headers));
    byId("filters").append(...this.makeFilters());
    this.update();
  }

  place(key) {
    return this.columns.findIndex((column) => column.key === key);
  }

  makeHeader(column, i) {
    const button = element("button", { type: "button" }, column.title + (column.kind === "percent" ? " (%)" : ""));
    button.addEventListener("click", () => {
      this.direction = this.sort === i ? -this.direction : 1;
      this.sort = i;
      this.update();
    });
    const kind = column.kind === "text" ? null : "number";
    return element("th", { scope: "col", class: kind, "aria-sort": "none", "data-key": column.key }, button);
  }

  makeFilters() {
    const keys = ["method", "task", "status"].filter((key) => this.place(key) >= 0);
    const search = element("input", { type: "search", placeholder: "any column", "data-filter": "search" });
    search.addEventListener("input", () => this.update({ search: search.value.trim().toLowerCase() }));
    const grouped = element("input", { type: "checkbox", id: "group-seeds" });
    grouped.addEventListener("change", () => this.update({ grouped: grouped.checked }));
    return [
      ...keys.map((key) => this.makeFilter(key)),
      element("label", {}, "search", search),
      element("label", { class: "check" }, grouped, "group seeds"),
    ];
  }

  makeFilter(key) {
    const values = new Set(this.runs.map((row) => row[this.place(key)]));
    const options = [ANY, ...values].map((value) => element("option", { value }, value));
    const select = element("select", { "data-filter": key }, ...options);
    select.addEventListener("change", () => this.update({ filters: { ...this.filters, [key]: select.value } }));
    return element("label", {}, key, select);
  }

  // Seeds with different statuses share a row, which lists all of them.
  matches(row) {
    const fits = ([key, wanted]) => {
      const value = row[this.place(key)];
      return wanted === ANY || (key === "status" ? value.includes(wanted) : value === wanted);
    };
    const texts = row.map((value, i) => writeCell(this.columns[i], value).toLowerCase());
    return Object.entries(this.filters).every(fits) && texts.some((text) => text.includes(this.search));
  }

  update(changes = {}) {
    Object.assign(this, changes);
    const all = this.grouped ? this.settings : this.runs;
    const rows = all.filter((row) => this.matches(row));
    if (this.sort !== null) {
      const key = (row) => [row[this.sort]].flat()[0];
      rows.sort((a, b) => compare(key(a), key(b), this.direction));
    }
    const order = this.direction > 0 ? "ascending" : "descending";
    this.headers.forEach((header, i) => header.setAttribute("aria-sort", i === this.sort ? order : "none"));
    byId("runs-table").tBodies[0].replaceChildren(...rows.map((row) => this.makeRow(row)));
    const what = this.grouped ? "settings, mean ± standard deviation over their seeds" : "runs";
    byId("runs-count").textContent = `${rows.length} of ${all.length} ${what}`;
  }

  makeRow(row) {
    const lost = /diverged|failed/.test(row[this.place("status")]);
    const cells = this.columns.map((column, i) => {
      const text = writeCell(column, row[i]);
      const marked = lost && column.key === "status" ? `× ${text}` : text;
      return element("td", { class: column.kind === "text" ? column.key : "number" }, marked);
    });
    return element("tr", { class: lost ? "lost" : null }, ...cells);
  }
}

function showTable() {
  byId("runs").hidden = report.table.runs.length === 0;
  if (report.table.runs.length) new RunTable(report.table);
}
