"use strict";
// The page of one run: what happens when messages come, people turn to something, time passes.

const story = new Story();
const curves = new Curves(() => [series], {single: true});
const series = new Series(story, "");
let rows = []; // of the heatmap

view.range = () => {
  const now = story.now();
  const span = Number(element("span").value);
  const begin = span ? Math.max(story.head.began, now - span) : story.head.began;
  return [begin, Math.max(now, begin + 1)];
};
view.grows = () => !story.head.ended;
view.ready = () => story.head !== null;

function tellCell({points}) {
  const [point] = points;
  if (point.data.type !== "heatmap" || !rows[point.y]) return;
  put("lanes-note", `${rows[point.y].label}: ${STATES[point.z]} at ${clockText(secondsOf(point.x), false)}`);
}

view.zoomed = () => {
  dataTables.draw(story, true);
  timeLost.draw(story);
};

charts.push(
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
    put("lanes-note", `${countText(story.lanes.size, "slot")}: ${words || "none in use"}${grouped}${view.zoom ? "; double-click shows all again" : story.lanes.size > MOST_BARS ? "; drag to zoom in" : ""}`);
    return figure;
  }, {hover: tellCell}),
  new Chart("phases", () => {
    const figure = phasesFigure(story);
    element("phases-empty").hidden = figure[2] > 0;
    put("phases-note", figure[2] >= MOST_RECOVERIES ? `the latest ${MOST_RECOVERIES}` : "");
    element("phases").setAttribute("aria-label", `How long each phase of the latest ${countText(figure[2], "interruption")} took`);
    return figure[2] ? figure : null;
  }, {time: false}),
  new Chart("usage", () => usageFigure(story, range())),
);

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

function take(update) {
  if (!update.head && !story.head) return;
  const news = story.take(update);
  element("main").hidden = false;
  drawHead(story);
  series.label = runName(story.head);
  if (window.steering) steering.look(story);
  dataTables.draw(story);
  timeLost.draw(story);
  if (news.has("hosts")) drawHosts(story);
  if (news.has("log")) drawLog(story, update.whole);
  if (news.has("usage")) drawUsage(story);
  if (news.has("lanes") && makeRoom([...story.lanes.keys()])) redrawAll();
  const parts = {world: ["rounds"], lanes: ["lanes"], phases: ["interruptions"], usage: ["usage"]};
  for (const chart of charts) if ((parts[chart.id] || []).some((part) => news.has(part))) chart.dirty = true;
  if (["curve", "rounds", "interruptions"].some((part) => news.has(part))) curves.take();
  later();
}

function redrawAll() {
  drawLegend();
  for (const chart of charts) chart.dirty = true;
  later();
}

function listen() {
  const stream = new EventSource(`events${location.search}`);
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
  if (window.steering) steering.start();
  dataTables.start();
  timeLost.start();
  startUsage();
  element("hosts-filter").addEventListener("input", () => drawHosts(story));
  for (const id of ["log-filter", "log-kind"]) element(id).addEventListener("input", () => drawLog(story, true));
  element("span").addEventListener("input", () => zoomTo(null));
  put("zone", zoneText());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
  document.addEventListener("visibilitychange", later);
  const data = element("data");
  if (data) {
    const update = JSON.parse(data.textContent);
    take(update);
    new WorkerOutput().show(update.output);
  } else {
    listen();
    new WorkerOutput().start();
    new WorkerStacks().start();
    setInterval(() => {
      if (document.hidden || !story.head) return;
      drawHead(story);
      later();
    }, 1000);
  }
  setInterval(later, 250);
}

start();
