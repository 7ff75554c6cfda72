"use strict";
// The card with curves: which values, over what, how they are drawn, and what they are where one points.

const MOST_FIRST = 3; // values that are drawn until the reader chooses
const MOST_TABLE_ROWS = 200;

function made(tag, name = "", text = "") {
  const found = document.createElement(tag);
  if (name) found.className = name;
  if (text) found.textContent = text;
  return found;
}

class Curves {
  // `runs` gives the Series of each run; with `single`, they are those of the one run that the page is about.
  constructor(runs, {single}) {
    this.runs = runs;
    this.single = single;
    this.zooms = {}; // by axis
    this.plots = [];
    this.keys = [];
    this.chosen = null; // of the keys; null: the first ones
    this.settings = new URLSearchParams(location.hash.slice(1));
    const over = element("curve-over");
    for (const axis of single ? ["wall", "elapsed", "steps", "samples"] : ["elapsed", "steps", "samples", "wall"]) {
      const option = made("option", "", AXES[axis]);
      option.value = axis;
      over.append(option);
    }
    this.restore();
    for (const id of ["curve-over", "curve-scale", "curve-together", "curve-smooth"]) element(id).addEventListener("input", () => this.change());
    element("curve-filter").addEventListener("input", () => this.filter());
    element("curve-table").addEventListener("toggle", () => this.fillTable());
    element("curve-none").addEventListener("click", () => this.choose([]));
    element("curve-all").addEventListener("click", () => this.choose(this.keys.filter((key) => !this.boxOf(key).parentElement.hidden)));
    for (const kind of ["csv", "json", "png"]) element(`save-${kind}`).addEventListener("click", () => downloads[kind](this));
    view.pointed = (time, place) => this.tell(time, place);
  }

  get axis() {
    return element("curve-over").value;
  }

  get weight() {
    return Number(element("curve-smooth").value);
  }

  get logarithmic() {
    return element("curve-scale").value === "log";
  }

  get together() {
    return element("curve-together").checked;
  }

  // ---- what is chosen, which the page's address remembers --------------------------------------------------------

  restore() {
    const asked = this.settings;
    const offered = [...element("curve-over").options].map((option) => option.value);
    if (offered.includes(asked.get("over"))) element("curve-over").value = asked.get("over");
    if (asked.get("scale") === "log") element("curve-scale").value = "log";
    element("curve-together").checked = asked.get("together") === "1";
    if (asked.has("smooth")) element("curve-smooth").value = asked.get("smooth");
    if (asked.has("value")) this.chosen = asked.getAll("value");
    this.sayWeight();
  }

  remember() {
    const asked = new URLSearchParams();
    if (element("curve-over").selectedIndex) asked.set("over", this.axis);
    if (this.logarithmic) asked.set("scale", "log");
    if (this.together) asked.set("together", "1");
    if (this.weight) asked.set("smooth", this.weight);
    for (const key of this.chosen || []) asked.append("value", key);
    history.replaceState(null, "", `${location.pathname}${location.search}${asked.size ? `#${asked}` : ""}`);
  }

  sayWeight() {
    element("curve-weight").textContent = this.weight.toFixed(2);
  }

  change() {
    this.sayWeight();
    this.remember();
    this.arrange();
    this.tell(crosshair.time, crosshair.place);
    this.redraw();
  }

  choose(keys) {
    this.chosen = keys;
    for (const key of this.keys) this.boxOf(key).checked = keys.includes(key);
    this.change();
  }

  get shownKeys() {
    return this.chosen === null ? this.keys.slice(0, MOST_FIRST) : this.keys.filter((key) => this.chosen.includes(key));
  }

  boxOf(key) {
    return [...element("curve-names").querySelectorAll("input[type=checkbox]")].find((box) => box.value === key);
  }

  filter() {
    const wanted = element("curve-filter").value.toLowerCase();
    for (const label of element("curve-names").querySelectorAll("label.pick")) label.hidden = !label.textContent.toLowerCase().includes(wanted);
  }

  // ---- what there is ---------------------------------------------------------------------------------------------

  // The runs have changed.
  take() {
    const runs = this.runs();
    for (const run of runs) run.refresh();
    const own = Object.keys(OWN);
    const keys = [...new Set(runs.flatMap((run) => run.keys))].sort((a, b) => own.indexOf(a) - own.indexOf(b));
    if (keys.length !== this.keys.length || keys.some((key, place) => key !== this.keys[place])) this.offer(keys);
    const counted = runs.some((run) => run.countsSamples);
    const samples = [...element("curve-over").options].find((option) => option.value === "samples");
    if (samples.disabled === counted) samples.disabled = !counted;
    if (!counted && this.axis === "samples" && runs.some((run) => run.story.points.length)) element("curve-over").selectedIndex = 0;
    this.arrange();
    for (const plot of this.plots) plot.chart.dirty = true;
    this.tell(crosshair.time, crosshair.place);
  }

  offer(keys) {
    this.keys = keys;
    const shown = this.shownKeys;
    const picks = keys.map((key) => {
      const [label, box] = [made("label", "pick"), document.createElement("input")];
      box.type = "checkbox";
      box.value = key;
      box.checked = shown.includes(key);
      box.addEventListener("input", () => this.choose(this.keys.filter((each) => this.boxOf(each).checked)));
      label.append(box, made("span", key.startsWith("own:") ? "own" : "", nameOf(key)));
      return label;
    });
    element("curve-names").replaceChildren(...picks);
    for (const id of ["curve-filter", "curve-none", "curve-all"]) element(id).hidden = keys.length < 8;
    this.filter();
  }

  // As many charts as there are to be. The first ones that stay the same are kept, unless all become narrower or wider.
  arrange() {
    const keys = this.shownKeys;
    const wanted = this.together ? (keys.length ? [keys] : []) : keys.map((key) => [key]);
    const id = (group) => group.join("\n");
    const other = wanted.findIndex((group, place) => place >= this.plots.length || id(group) !== id(this.plots[place].keys));
    let kept = other < 0 ? wanted.length : other;
    if (kept === wanted.length && kept === this.plots.length) return;
    if (wanted.length > 2 !== this.plots.length > 2) kept = 0;
    for (const plot of this.plots.splice(kept)) {
      crosshair.detach(plot.chart);
      charts.splice(charts.indexOf(plot.chart), 1);
      if (plot.chart.listens) Plotly.purge(plot.at);
    }
    const added = wanted.slice(kept).map((group, at) => this.plot(group, kept + at));
    this.plots.push(...added);
    charts.push(...added.map((plot) => plot.chart));
    const grid = element("curves");
    grid.replaceChildren(...this.plots.map((plot) => plot.figure));
    grid.dataset.many = wanted.length > 2 ? "yes" : "no";
    element("curve-empty").hidden = keys.some((key) => !key.startsWith("own:")) || !this.single || this.chosen !== null;
  }

  plot(keys, place) {
    const figure = made("figure", "curve");
    const legend = made("figcaption", "readout");
    const at = made("div", "chart");
    at.id = `curve-${place}`;
    at.tabIndex = 0;
    at.setAttribute("role", "group");
    figure.append(legend, at);
    const plot = {keys, figure, legend, at};
    const zoomed = (ends) => this.zoomed(ends, plot);
    const chart = new Chart(at.id, () => this.figure(plot), {zoomed});
    chart.ends = () => this.ends();
    if (this.single) {
      chart.timeAt = (value) => this.runs()[0].timeAt(value, this.axis);
      chart.placeOf = (time) => (time === null ? null : this.runs()[0].at(time, this.axis));
    } else chart.placeOf = (_, value) => value;
    chart.pointed = (value) => this.read(plot, value);
    at.addEventListener("keydown", (event) => this.key(event, chart));
    at.addEventListener("blur", () => crosshair.leave());
    plot.chart = chart;
    return plot;
  }

  // The curves of a chart, each with its look: runs differ in colour, or the values of a single one do.
  curvesOf(keys) {
    const runs = this.runs();
    return runs.flatMap((series, of) => keys.filter((key) => series.keys.includes(key)).map((key) => {
      const at = keys.indexOf(key);
      const style = runs.length > 1 ? {...look(of), ...(keys.length > 1 ? {dash: DASHES[at % DASHES.length]} : {})} : look(keys.length > 1 ? at : Math.max(0, this.keys.indexOf(key)));
      return {series, key, style, undone: this.axis !== "samples" || runs.length === 1};
    }));
  }

  ends() {
    if (this.axis === "wall" && this.single) return range();
    const zoom = this.zooms[this.axis];
    if (zoom) return zoom;
    const all = this.runs().map((series) => series.extent(this.axis)).filter(Boolean);
    const ends = all.length ? [all.reduce((least, [from]) => Math.min(least, from), Infinity), all.reduce((most, [, to]) => Math.max(most, to), -Infinity)] : [0, 1];
    return ends[1] > ends[0] ? ends : [ends[0], ends[0] + 1];
  }

  figure({keys, at}) {
    const curves = this.curvesOf(keys);
    const runs = this.runs().map((series, of) => ({series, style: look(of)}));
    const names = keys.map(nameOf).join(", ");
    at.setAttribute("aria-label", `${names} over ${AXES[this.axis]}; arrow keys move the crosshair, + and − zoom, 0 shows all`);
    return curvesFigure(curves, {axis: this.axis, ends: this.ends(), weight: this.weight, logarithmic: this.logarithmic, width: Math.max(100, at.clientWidth - frame.left - frame.right), marked: this.single ? runs[0].series : null, runs});
  }

  zoomed(ends) {
    this.show(ends && ends.map(scaleOf(this.axis, this.ends()).value));
  }

  // Show this stretch of the axis; null: everything.
  show(ends) {
    if (this.axis === "wall" && this.single) return zoomTo(ends);
    this.zooms[this.axis] = ends;
    this.redraw();
  }

  redraw() {
    redraw(this.plots.map((plot) => plot.chart));
    this.fillTable();
  }

  // ---- pointing --------------------------------------------------------------------------------------------------

  key(event, chart) {
    const [from, to] = this.ends();
    const at = crosshair.place === null || (chart.placeOf && chart.placeOf(crosshair.time, crosshair.place) === null) ? (from + to) / 2 : chart.placeOf(crosshair.time, crosshair.place);
    const step = (to - from) / (event.shiftKey ? 10 : 100);
    const moves = {ArrowLeft: at - step, ArrowRight: at + step, Home: from, End: to};
    const factors = {"+": 0.5, "=": 0.5, "-": 2};
    if (event.key in moves) crosshair.show(chart, Math.min(to, Math.max(from, moves[event.key])));
    else if (event.key in factors || event.key === "0") {
      const factor = factors[event.key];
      chart.comeFirst();
      this.show(factor ? [at - (at - from) * factor, at + (to - at) * factor] : null);
    } else return;
    event.preventDefault();
  }

  // What a chart's curves are at a place; the latest, where none is pointed at.
  read({keys, legend}, place) {
    const [axis, weight] = [this.axis, this.weight];
    const entries = this.curvesOf(keys).map(({series, key, style}) => {
      const entry = made("span", "key");
      const mark = document.createElement("i");
      mark.style.borderTop = `3px ${{solid: "solid", dash: "dashed", dot: "dotted"}[style.dash] || "dashed"} ${style.color}`;
      const value = series.valueAt(key, axis, weight, place === null ? Infinity : place);
      const words = [];
      if (!this.single) words.push(series.label);
      if (this.single || keys.length > 1) words.push(nameOf(key));
      entry.append(mark, made("span", "", words.join(" · ")), made("b", "", value === undefined ? "–" : numberText(value)));
      if (weight && key !== "own:size") {
        const raw = series.valueAt(key, axis, 0, place === null ? Infinity : place);
        entry.append(made("span", "raw", raw === undefined ? "" : `(${numberText(raw)})`));
      }
      return entry;
    });
    legend.replaceChildren(...(this.single ? [] : [made("strong", "", keys.map(nameOf).join(", "))]), ...entries);
  }

  // What was where one points, in a line.
  tell(time, place) {
    const word = this.single ? this.story(time) : place === null ? "" : `${AXES[this.axis]}: ${this.placeText(place)}`;
    const notes = [zoneText(), "drag to zoom in, double-click shows all"];
    if (this.weight) notes.push(`smoothed as in TensorBoard, faint: as reported (s = ${this.weight}·s + ${(1 - this.weight).toFixed(2)}·y, over 1 − ${this.weight}ⁿ)`);
    if (this.logarithmic) notes.push("values of 0 and below cannot be shown on a log scale");
    if (["steps", "samples"].includes(this.axis) && this.runs().some((run) => run.starts > 1)) notes.push("of the script's last call of run");
    put("curve-note", word || notes.join("; "));
  }

  placeText(place) {
    if (this.axis === "wall") return clockText(place, true);
    return this.axis === "elapsed" ? shortText(place) : Math.round(place).toLocaleString("en");
  }

  story(time) {
    const [series] = this.runs();
    if (time === null || !series) return "";
    const [round, stop] = [series.roundAt(time), series.interruptionAt(time)];
    const steps = series.at(time, "steps");
    const words = [clockText(time, true), steps === null ? "" : `step ${Math.round(steps).toLocaleString("en")}`];
    words.push(round ? `round ${round.id}, ${countText(round.size, "worker")}` : "no round");
    if (stop) words.push(`${stop.kind}, ${shortText(stop.seconds)} without a step${stop.cause ? `: ${stop.cause}` : ""}`);
    return words.filter(Boolean).join(" · ");
  }

  // ---- the same in numbers ---------------------------------------------------------------------------------------

  fillTable() {
    const details = element("curve-table");
    if (!details.open) return;
    const keys = this.shownKeys;
    const table = element("curve-rows");
    const head = document.createElement("tr");
    for (const name of [...(this.single ? [] : ["run"]), "time", "step", ...keys.map((key) => `${nameOf(key)}${this.weight && key !== "own:size" ? " (smoothed)" : ""}`)]) {
      const cell = made("th", "", name);
      cell.scope = "col";
      head.append(cell);
    }
    const [from, to] = this.ends();
    const most = Math.floor(MOST_TABLE_ROWS / Math.max(1, this.runs().length));
    const rows = this.runs().flatMap((series) => {
      const along = series.along(this.axis);
      const inside = along.points.map((point, place) => [point, along.xs[place]]).filter(([, x]) => x >= from && x <= to);
      const every = Math.ceil(inside.length / most) || 1;
      return inside.filter((_, place) => place % every === 0 || place === inside.length - 1).map(([point, x]) => {
        const row = document.createElement("tr");
        if (!this.single) cell(row, series.label);
        cell(row, clockText(point[0], true));
        cell(row, point[1].toLocaleString("en"), "right");
        for (const key of keys) {
          const value = series.valueAt(key, this.axis, this.weight, x);
          cell(row, value === undefined ? "–" : numberText(value), "right");
        }
        return row;
      });
    });
    table.replaceChildren(head, ...rows);
  }
}
