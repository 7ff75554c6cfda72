"use strict";
// What hosts and workers use: a chart over time by host, and a table of what they use now.

const RESOURCES = [ // in the order of what a point has
  {name: "cores in use", limit: 0, text: coresText, tick: (value) => String(Number(value.toPrecision(6)))},
  {name: "memory in use", limit: 1, text: bytesText},
  {name: "received from the network", text: (value) => `${bytesText(value)}/s`},
  {name: "sent to the network", text: (value) => `${bytesText(value)}/s`},
  {name: "GPUs busy", gpu: true, text: (value) => `${Math.round(100 * value)} %`},
  {gpu: true, name: "GPU memory in use", limit: 2, text: bytesText},
];
const ALL_HOSTS = "";
const MOST_USAGE_ROWS = 200;
const MOST_DRAWN_POINTS = 6000; // of all curves together: what is drawn in the time that a gesture may take
const HOST_COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8c6d1f", "#7a7fd1"];
const HOST_COLOURS_IN_THE_DARK = ["#4aa3df", "#e8b339", "#4fc79b", "#d69abf", "#ff7b52", "#8fd3f4", "#c9a85a", "#a3a7f0"];
const HOST_DASHES = ["solid", "dash", "dot", "dashdot"];

function bytesText(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (count >= 999.5 && unit < units.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return `${unit && count < 99.95 ? count.toFixed(1) : Math.round(count)} ${units[unit]}`;
}

function coresText(cores) {
  return cores < 1 ? cores.toFixed(2) : cores < 100 ? cores.toFixed(1) : String(Math.round(cores));
}

// A few values on the axis, in the units in which one reads them: 0, 10 GiB, 20 GiB.
function usageTicks(most, text, binary) {
  const unit = binary ? 1024 ** Math.max(0, Math.floor(Math.log(most || 1) / Math.log(1024))) : 1;
  const raw = most / unit / 4;
  const power = 10 ** Math.floor(Math.log10(raw || 1));
  const step = [1, 2, 5, 10].map((of) => of * power).find((of) => of >= raw) * unit;
  const values = [];
  for (let at = 0; at <= most * 1.0001 && values.length < 8; at += step) values.push(at);
  return {tickvals: values, ticktext: values.map(text)};
}

function usageFigure(story, range) {
  const kind = Number(element("usage-of").value);
  const {name, limit, text, tick} = RESOURCES[kind];
  const all = story.usage.points;
  const hosts = [...new Set(all.flatMap(([, used]) => Object.keys(used)))];
  const every = Math.ceil((all.length * hosts.length) / MOST_DRAWN_POINTS);
  const points = all.filter((_, place) => (all.length - 1 - place) % every === 0);
  const shown = hosts.filter((host) => host !== ALL_HOSTS && points.some(([, used]) => used[host] && used[host][kind] !== null));
  element("usage-empty").hidden = shown.length > 0;
  put("usage-note", shown.length && hosts.includes(ALL_HOSTS) && story.usage.rows.filter((row) => row.slot === null).length > shown.length ? `the first ${shown.length} hosts` : "");
  if (!shown.length) return null;
  const colour = colours();
  const mode = points.length > 1 ? "lines" : "markers";
  const tints = matchMedia("(prefers-color-scheme: dark)").matches ? HOST_COLOURS_IN_THE_DARK : HOST_COLOURS;
  let most = 0;
  const traces = shown.map((host, place) => {
    const y = points.map(([, used]) => (used[host] ? used[host][kind] : null));
    for (const value of y) most = Math.max(most, value || 0);
    return {x: points.map(([time]) => local(time)), y, name: plainText(host), text: points.map(([time], at) => (y[at] === null ? "" : `<b>${plainText(host)}</b> ${text(y[at])}<br>${clockText(time)}`)), type: "scatter", mode, hoverinfo: "text", connectgaps: false, line: {color: tints[place % tints.length], dash: HOST_DASHES[Math.floor(place / tints.length) % HOST_DASHES.length], width: 1.8}};
  });
  const limits = limit === undefined ? [] : story.usage.rows.filter((row) => row.limits && shown.includes(row.host)).map((row) => row.limits[limit]);
  const bounds = [...new Set(limits)].filter((bound) => bound > 0 && bound <= most * 3).slice(0, 3);
  const shapes = bounds.map((y0) => ({type: "line", xref: "paper", x0: 0, x1: 1, y0, y1: y0, line: {color: colour.quiet, width: 1, dash: "dot"}, label: {text: `of ${limit ? text(y0) : `${y0} cores`}`, textposition: "end", font: {size: 10, color: colour.quiet}}}));
  const top = kind === 4 ? 1 : Math.max(most, ...bounds) || 1;
  element("usage").setAttribute("aria-label", `${name}, by host, over time: ${shown.slice(0, 8).map((host) => `${host} ${latestText(points, host, kind, text)}`).join(", ")} now; the table beside it has the numbers`);
  const axis = {range: [0, top * 1.12], autorange: false, fixedrange: true, ...(kind === 4 ? {tickformat: ".0%", nticks: 6} : usageTicks(top, tick || text, kind === 1 || kind === 2 || kind === 3 || kind === 5))};
  const whole = {xaxis: {...timeAxis(range), nticks: 5}, yaxis: axis, height: 260, shapes, hovermode: "closest", showlegend: shown.length > 1, legend: {orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: {size: 11, color: colour.quiet}}, margin: {l: 44, r: 8, t: shown.length > 1 ? 30 : 8, b: 32}, uirevision: `usage ${kind}`};
  return [traces, layout(colour, whole)];
}

function latestText(points, host, kind, text) {
  for (let at = points.length - 1; at >= 0; at -= 1) {
    const used = points[at][1][host];
    if (used && used[kind] !== null) return text(used[kind]);
  }
  return "unknown";
}

function drawUsage(story) {
  const {rows} = story.usage;
  const gpus = rows.some(({used}) => used[4] !== null || used[5] !== null);
  document.getElementById("resources").dataset.gpus = gpus ? "some" : "none";
  for (const option of document.getElementById("usage-of").options) option.hidden = option.disabled = Boolean(RESOURCES[Number(option.value)].gpu) && !gpus;
  document.getElementById("resources").hidden = rows.length === 0 && story.usage.points.length === 0;
  const wanted = document.getElementById("usage-filter").value.toLowerCase();
  const label = (row) => (row.slot === null ? row.host : `${row.host}:${row.slot}${row.rank === null ? "" : `, rank ${row.rank}`}`);
  const all = rows.filter((row) => !wanted || label(row).toLowerCase().includes(wanted));
  document.getElementById("usage-rows").replaceChildren(...all.slice(0, MOST_USAGE_ROWS).map((row) => usageRow(row, label(row))));
  const rest = all.length - MOST_USAGE_ROWS;
  put("usage-rows-note", rest > 0 ? `${rest.toLocaleString("en")} more are not shown: filter` : `${story.head.ended || story.link === "record" ? "as they were last sampled" : "sampled every 2 s"}; a worker's processes together, what they share is counted once`);
}

function usageRow({host, slot, used, limits}, label) {
  const row = document.createElement("tr");
  if (slot === null) row.className = "host";
  const head = document.createElement("th");
  head.scope = "row";
  if (slot === null) head.textContent = host;
  else head.append(Object.assign(document.createElement("span"), {className: "of", textContent: host}), label.slice(host.length));
  row.append(head);
  used.forEach((value, kind) => {
    const {limit, text} = RESOURCES[kind];
    const of = limits && limit !== undefined && limits[limit] ? ` of ${limit === 0 ? limits[0] : text(limits[limit])}` : "";
    cell(row, value === null ? "" : sharedUnit(text(value), of), "right");
  });
  return row;
}

// 3.0 of 23.5 GiB: a unit that both have stands once.
function sharedUnit(text, of) {
  const unit = text.slice(text.indexOf(" "));
  return of && unit.startsWith(" ") && of.endsWith(unit) ? text.slice(0, -unit.length) + of : text + of;
}

function startUsage() {
  element("usage-filter").addEventListener("input", () => drawUsage(story));
  element("usage-of").addEventListener("input", redrawAll);
}
