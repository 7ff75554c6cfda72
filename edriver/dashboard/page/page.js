"use strict";
// What happens when: messages come, people turn to something, time passes. One chart is drawn at a time, and the longer
// it takes the more seldom, so that the page always answers.

const story = new Story();
const PLOT = {displaylogo: false, responsive: true, displayModeBar: false, doubleClick: false};
const view = {zoom: null}; // of all charts over time: [from, to] in seconds, or what is chosen as span
const LEAST_PAUSE = 400; // ms between two drawings of one chart
let rows = []; // of the heatmap
let pending = false;

function element(id) {
  return document.getElementById(id);
}

function range() {
  if (view.zoom) return view.zoom;
  const now = story.now();
  const span = Number(element("span").value);
  const begin = span ? Math.max(story.head.began, now - span) : story.head.began;
  return [begin, Math.max(now, begin + 1)];
}

class Chart {
  constructor(id, draw) {
    this.id = id;
    this.draw = draw;
    this.dirty = true;
    this.last = -Infinity;
    this.took = 0;
    this.until = 0;
    this.listens = false;
  }

  // Whether there is something new to see, or so much time has passed that one would see it.
  wants(now) {
    if (now - this.last < Math.max(LEAST_PAUSE, 12 * this.took)) return false;
    if (this.dirty) return true;
    if (view.zoom || this.id === "phases" || story.head.ended) return false;
    const [from, to] = range();
    return to - this.until > Math.max(1, (to - from) / 300);
  }

  update() {
    const began = performance.now();
    this.dirty = false;
    this.until = range()[1];
    const figure = this.draw();
    const at = element(this.id);
    at.hidden = !figure;
    if (figure) {
      Plotly.react(at, figure[0], figure[1], PLOT);
      if (!this.listens) this.listen(at);
    }
    this.last = performance.now();
    this.took = this.last - began;
  }

  listen(at) {
    this.listens = true;
    if (this.id === "phases") return;
    at.on("plotly_relayout", (change) => {
      if (!("xaxis.range[0]" in change) || (this.id === "curve" && element("curve-over").value === "steps")) return;
      zoomTo([secondsOf(change["xaxis.range[0]"]), secondsOf(change["xaxis.range[1]"])]);
    });
    at.on("plotly_doubleclick", () => zoomTo(null));
    if (this.id === "lanes") at.on("plotly_hover", tellCell);
  }
}

// A time as plotly gives it, local time in ms or as a text, in seconds since the epoch.
function secondsOf(shown) {
  const wall = typeof shown === "number" ? shown : Date.parse(`${shown.replace(" ", "T")}${shown.includes(":") ? "" : "T00:00"}Z`);
  return (wall + new Date(wall).getTimezoneOffset() * 60000) / 1000;
}

function tellCell({points}) {
  const [point] = points;
  if (point.data.type !== "heatmap" || !rows[point.y]) return;
  put("lanes-note", `${rows[point.y].label}: ${STATES[point.z]} at ${clockText(secondsOf(point.x), false)}`);
}

function zoomTo(zoom) {
  view.zoom = zoom;
  for (const chart of charts) chart.dirty = true;
  later();
}

const charts = [
  new Chart("world", () => {
    const head = story.head;
    element("world").setAttribute("aria-label", `World size over time: ${head.size} now, after ${countText(head.rounds, "round")}, ${countText(head.failures, "failure")}`);
    return worldFigure(story, range());
  }),
  new Chart("lanes", () => {
    const figure = lanesFigure(story, range());
    rows = figure[2] || [];
    const counts = STATES.map(() => 0);
    for (const lane of story.lanes.values()) counts[lane.steps.length ? lane.steps[lane.steps.length - 1][1] : 0] += 1;
    const words = STATES.map((state, place) => [state, counts[place]]).slice(1).filter(([, count]) => count).map(([state, count]) => `${count.toLocaleString("en")} ${state}`).join(", ");
    element("lanes").setAttribute("aria-label", `${countText(story.lanes.size, "worker slot")}: ${words || "none in use"}`);
    const grouped = rows.length && rows.length < story.lanes.size ? "; a row is a host, and shows the worst of its slots" : "";
    put("lanes-note", `${countText(story.lanes.size, "slot")}: ${words || "none in use"}${grouped}${view.zoom ? "; double-click shows all again" : story.lanes.size > MOST_BARS ? "; drag to look closer" : ""}`);
    return figure;
  }),
  new Chart("curve", () => {
    element("curve-empty").hidden = story.points.length > 0;
    if (!story.points.length) return null;
    pickCurves();
    const name = element("curve-name").value;
    element("curve").setAttribute("aria-label", `${name || "steps a second"} over ${element("curve-over").value}: ${numberText(name ? (story.progress.reported || {})[name] : story.progress.step_rate)} now`);
    return curveFigure(story, name, element("curve-over").value, range());
  }),
  new Chart("phases", () => {
    const figure = phasesFigure(story);
    element("phases-empty").hidden = figure[2] > 0;
    put("phases-note", figure[2] >= MOST_RECOVERIES ? `the latest ${MOST_RECOVERIES}` : "");
    element("phases").setAttribute("aria-label", `How long each phase of the latest ${countText(figure[2], "interruption")} took`);
    return figure[2] ? figure : null;
  }),
];

// The names that are reported; the speed is always there. The loss is shown first.
function pickCurves() {
  const names = [...new Set(story.points.flatMap((point) => Object.keys(point[3])))];
  const select = element("curve-name");
  const there = [...select.options].map((option) => option.value);
  if (there.length === names.length + 1 && names.every((name) => there.includes(name))) return;
  const chosen = there.length > 1 ? select.value : names.find((name) => /loss/i.test(name)) || names[0] || "";
  select.replaceChildren(...[...names, ""].map((name) => {
    const option = document.createElement("option");
    option.value = name;
    option.textContent = name || "steps a second";
    return option;
  }));
  select.value = names.includes(chosen) ? chosen : "";
  element("curve-pick").hidden = false;
}

function drawLegend() {
  const colour = colours();
  const marks = {booting: "╱", waiting: "·", leaving: "╲", lost: "×"};
  element("lanes-legend").replaceChildren(...STATES.slice(1).map((state) => {
    const [made, mark] = [document.createElement("span"), document.createElement("i")];
    mark.style.backgroundColor = colour[state];
    made.append(mark, marks[state] ? `${state} ${marks[state]}` : state);
    return made;
  }));
}

// Soon, and once: what is due is done in the next free frames.
function later() {
  if (pending || document.hidden || !story.head) return;
  pending = true;
  requestAnimationFrame(() => {
    pending = false;
    const due = charts.filter((chart) => chart.wants(performance.now())).sort((a, b) => a.last - b.last);
    if (!due.length) return;
    due[0].update();
    if (due.length > 1) setTimeout(later, 0);
  });
}

function take(update) {
  if (!update.head && !story.head) return;
  const news = story.take(update);
  element("main").hidden = false;
  drawHead(story);
  if (news.has("hosts")) drawHosts(story);
  if (news.has("log")) drawLog(story, update.whole);
  const parts = {world: ["rounds"], lanes: ["lanes"], curve: ["curve"], phases: ["interruptions"]};
  for (const chart of charts) if (parts[chart.id].some((part) => news.has(part))) chart.dirty = true;
  later();
}

function redrawAll() {
  drawLegend();
  for (const chart of charts) chart.dirty = true;
  later();
}

function listen() {
  const stream = new EventSource("events");
  stream.onmessage = (message) => take(JSON.parse(message.data));
  stream.onerror = () => {
    if (!story.head || story.link === "ended") return;
    story.link = "away";
    drawHead(story);
    if (stream.readyState === EventSource.CLOSED) { // it was refused: the browser does not ask again by itself
      stream.close();
      setTimeout(listen, 5000);
    }
  };
}

function start() {
  drawLegend();
  element("hosts-filter").addEventListener("input", () => drawHosts(story));
  for (const id of ["log-filter", "log-kind"]) element(id).addEventListener("input", () => drawLog(story, true));
  element("span").addEventListener("input", () => zoomTo(null));
  for (const id of ["curve-name", "curve-over"]) element(id).addEventListener("input", redrawAll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
  document.addEventListener("visibilitychange", later);
  const data = element("data");
  if (data) {
    take(JSON.parse(data.textContent));
  } else {
    listen();
    new WorkerOutput().start();
    setInterval(() => {
      if (document.hidden || !story.head) return;
      drawHead(story);
      later();
    }, 1000);
  }
  setInterval(later, 250);
}

start();
