"use strict";
// The charts, drawn by plotly. Each function returns what plotly draws; nothing here looks at the page but for colours.

const SYMBOLS = {start: "circle", failure: "x", preemption: "triangle-down", resize: "diamond", unproven: "square"};
const PATTERNS = {booting: "/", waiting: ".", training: "", leaving: "\\", lost: "x"};
const PHASE_COLOURS = ["#999999", "#d55e00", "#cc79a7", "#f0e442", "#e69f00", "#56b4e9", "#009e73"];
const PHASE_PATTERNS = ["-", "x", "\\", "|", ".", "/", ""];
const MOST_BARS = 40; // slots that are drawn as bars; more are a heatmap
const MOST_ROWS = 1000;
const MOST_LOSSES = 300; // that are marked in the heatmap
const MOST_RECOVERIES = 60;

// What is left of and right of each chart over time, in pixels, so that one time is at one place in all of them.
const frame = {left: 48, right: 8};
const MOST_LABEL = 24; // characters of a slot's name that are shown

function colours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(`--${name}`).trim();
  return {ink: of("ink"), quiet: of("quiet"), line: of("line"), card: of("card"), accent: of("accent"), bad: of("bad"), booting: of("booting"), waiting: of("waiting"), training: of("training"), leaving: of("leaving"), lost: of("lost")};
}

// Plotly takes some HTML in texts; what comes from the run is to have none.
function plainText(text) {
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

// A name that fits beside a chart: of a long one, its beginning and its end.
function shortName(name) {
  const most = innerWidth < 600 ? 12 : MOST_LABEL;
  return name.length <= most ? name : `${name.slice(0, most / 2 - 1)}…${name.slice(-most / 2)}`;
}

// Make room for the names beside the charts; returns whether their left edge has moved.
function makeRoom(names) {
  const longest = names.reduce((most, name) => Math.max(most, shortName(name).length), 5);
  const left = Math.round(13 + 6.9 * longest);
  if (left === frame.left) return false;
  frame.left = left;
  return true;
}

// Plotly's date axes know no time zones: it is shown the local time.
function local(time) {
  const at = new Date(time * 1000);
  return at.getTime() - at.getTimezoneOffset() * 60000;
}

function layout(colour, more) {
  const axis = {color: colour.quiet, gridcolor: colour.line, linecolor: colour.line, zeroline: false, automargin: true};
  const {xaxis, yaxis, ...rest} = more;
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: {color: colour.ink, size: 12, family: "system-ui, sans-serif"},
    margin: {l: frame.left, r: frame.right, t: 8, b: 32}, showlegend: false, hovermode: "closest",
    hoverlabel: {bgcolor: colour.card, bordercolor: colour.line, font: {color: colour.ink}, align: "left"},
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    xaxis: {...axis, ...xaxis}, yaxis: {...axis, ...yaxis}, ...rest,
  };
}

function timeAxis(range) {
  return {type: "date", range: range.map(local), autorange: false, nticks: innerWidth < 600 ? 4 : 7, tickangle: 0};
}

// ---- world size ------------------------------------------------------------------------------------------------

function recoveryOf(round) {
  return round.phases === null ? null : round.phases.reduce((sum, part) => sum + part, 0);
}

function worldFigure(story, range) {
  const colour = colours();
  const gap = (range[1] - range[0]) / 500; // shorter breaks are no drop that one could see
  const [x, y] = [[], []];
  const step = (time, size) => { x.push(local(time)); y.push(size); };
  let before = null;
  const shown = [...story.rounds.values()].filter((round) => round.ended === null || round.ended >= range[0]);
  for (const round of shown) {
    if (before && before.ended !== null && round.assigned - before.ended > gap) step(before.ended, 0);
    else if (!before) step(round.assigned, 0);
    step(round.assigned, round.size);
    before = round;
  }
  if (before && before.ended !== null && story.now() - before.ended > gap) step(before.ended, 0);
  if (before) step(story.now(), y[y.length - 1]);
  const tints = {start: colour.quiet, failure: colour.lost, preemption: colour.waiting, resize: colour.training, unproven: colour.leaving};
  const hover = (round) => {
    const took = recoveryOf(round);
    const lost = round.lost ? `<br>${countText(round.lost, "step")} lost` : "";
    return `<b>round ${plainText(round.id)}</b>, ${countText(round.size, "worker")}<br>${KINDS[round.kind] || ""}: ${plainText(round.cause).slice(0, 160)}${took === null ? "" : `<br>${shortText(took)} until all had made a step`}${lost}`;
  };
  const line = {x, y, type: "scatter", mode: "lines", line: {shape: "hv", color: colour.training, width: 2}, fill: "tozeroy", fillcolor: "rgba(0,114,178,.12)", hoverinfo: "skip"};
  const marks = Object.keys(KINDS).map((kind) => {
    const of = shown.filter((round) => round.kind === kind);
    return {x: of.map((round) => local(round.assigned)), y: of.map((round) => round.size), text: of.map(hover), name: KINDS[kind], type: "scatter", mode: "markers", hoverinfo: "text", marker: {symbol: SYMBOLS[kind], color: tints[kind], size: kind === "failure" ? 10 : 9, line: {color: colour.card, width: 1}}};
  }).filter((trace) => trace.x.length);
  const most = Math.max(story.head.max_np || 0, ...shown.map((round) => round.size), 1);
  const bound = (y0, text) => ({type: "line", xref: "paper", x0: 0, x1: 1, y0, y1: y0, line: {color: colour.quiet, width: 1, dash: "dot"}, label: {text, textposition: "end", font: {size: 10, color: colour.quiet}}});
  const shapes = story.head.max_np ? [bound(story.head.min_np, "--min-np"), ...(story.head.max_np > story.head.min_np ? [bound(story.head.max_np, "--max-np")] : [])] : [];
  const whole = {xaxis: timeAxis(range), yaxis: {range: [0, most * 1.14], autorange: false, automargin: false, fixedrange: true, ...(most <= 6 ? {dtick: 1} : {nticks: 6}), tickformat: ",d"}, height: 230, shapes, showlegend: true, legend: {orientation: "h", x: 1, xanchor: "right", y: 1.02, yanchor: "bottom", font: {size: 11, color: colour.quiet}}, margin: {l: frame.left, r: frame.right, t: 22, b: 32}};
  return [[{...line, showlegend: false}, ...marks], layout(colour, whole)];
}

// ---- slots -----------------------------------------------------------------------------------------------------

function lanesFigure(story, range) {
  const lanes = [...story.lanes.values()].sort((a, b) => a.host.localeCompare(b.host, "en", {numeric: true}) || a.slot - b.slot);
  return lanes.length > MOST_BARS ? lanesMap(lanes, range, story.now()) : lanesBars(lanes, range, story.now());
}

function lanesBars(lanes, range, now) {
  const colour = colours();
  const least = (range[1] - range[0]) / 600; // a loss is seen, however short
  const shown = STATES.slice(1).map((state) => ({state, base: [], x: [], y: [], text: []}));
  for (const lane of lanes) {
    lane.steps.forEach(([begin, state, worker], place) => {
      const end = place + 1 < lane.steps.length ? lane.steps[place + 1][0] : now;
      if (!state || end < range[0] || begin > range[1]) return;
      if (end - begin < least / 4 && STATES[state] !== "lost") return;
      const of = shown[state - 1];
      const width = STATES[state] === "lost" ? Math.max(end - begin, least) : end - begin;
      of.base.push(local(begin));
      of.x.push(width * 1000);
      of.y.push(plainText(lane.key));
      of.text.push(`<b>${plainText(lane.key)}</b> ${STATES[state]}<br>worker ${worker}, ${clockText(begin)}, ${shortText(end - begin)}`);
    });
  }
  const traces = shown.filter((of) => of.x.length).map(({state, ...of}) => ({...of, type: "bar", orientation: "h", name: state, hoverinfo: "text", textposition: "none", marker: {color: colour[state], pattern: {shape: PATTERNS[state], fgcolor: colour.card, fillmode: "overlay", size: 6, solidity: 0.25}, line: {width: 0}}}));
  const labels = lanes.map((lane) => plainText(lane.key));
  return [traces, layout(colour, {xaxis: timeAxis(range), yaxis: {type: "category", categoryorder: "array", categoryarray: labels, range: [lanes.length - 0.5, -0.5], autorange: false, automargin: false, fixedrange: true, ticklabelstandoff: 4, tickmode: "array", tickvals: labels, ticktext: lanes.map((lane) => plainText(shortName(lane.key)))}, barmode: "overlay", bargap: 0.25, height: 60 + Math.max(2, lanes.length) * 24, hovermode: "closest"})];
}

// Rows of slots, or where there are too many, of hosts: the worst of their slots.
function rowsOf(lanes) {
  if (lanes.length <= MOST_ROWS) return lanes.map((lane) => ({label: lane.key, lanes: [lane]}));
  const hosts = new Map();
  for (const lane of lanes) {
    if (!hosts.has(lane.host)) hosts.set(lane.host, {label: lane.host, lanes: []});
    hosts.get(lane.host).lanes.push(lane);
  }
  const rows = [...hosts.values()];
  const together = Math.ceil(rows.length / MOST_ROWS);
  if (together === 1) return rows;
  return rows.filter((row, place) => place % together === 0).map((row, place) => ({label: `${row.label} and ${together - 1} more`, lanes: rows.slice(place * together, (place + 1) * together).flatMap((each) => each.lanes)}));
}

const WORST = [0, 3, 2, 1, 4, 5]; // of states: how much one wants to see it

function statesIn(lane, range, bins, now) {
  const found = new Uint8Array(bins);
  const width = (range[1] - range[0]) / bins;
  for (let place = 0; place < lane.steps.length; place += 1) {
    const [begin, state] = lane.steps[place];
    const end = place + 1 < lane.steps.length ? lane.steps[place + 1][0] : now;
    if (end < range[0] || begin > range[1] || !state) continue;
    const lost = STATES[state] === "lost";
    // A bin shows what stands at its middle, and a loss wherever there is one.
    const first = Math.max(0, lost ? Math.floor((begin - range[0]) / width) : Math.ceil((begin - range[0]) / width - 0.5));
    const last = Math.min(bins - 1, lost ? Math.floor((end - range[0]) / width) : Math.ceil((end - range[0]) / width - 0.5) - 1);
    for (let bin = first; bin <= last; bin += 1) if (STATES[found[bin]] !== "lost") found[bin] = state;
  }
  return found;
}

// The latest losses that are in sight, each with its row: a row may be thinner than a pixel.
function lossesOf(rows, range, now) {
  const found = [];
  rows.forEach((row, at) => {
    for (const lane of row.lanes) {
      lane.steps.forEach(([begin, state, worker]) => {
        if (STATES[state] !== "lost" || begin < range[0] || begin > Math.min(now, range[1])) return;
        found.push([begin, at, `<b>${plainText(lane.key)}</b> lost<br>worker ${worker}, ${clockText(begin)}`]);
      });
    }
  });
  return found.sort((a, b) => b[0] - a[0]).slice(0, MOST_LOSSES);
}

function lanesMap(lanes, range, now) {
  const colour = colours();
  const rows = rowsOf(lanes);
  const bins = rows.length > 300 ? 160 : 320;
  const z = rows.map((row) => {
    const [first, ...others] = row.lanes.map((lane) => statesIn(lane, range, bins, now));
    for (const other of others) for (let bin = 0; bin < bins; bin += 1) if (WORST[other[bin]] > WORST[first[bin]]) first[bin] = other[bin];
    return first;
  });
  const scale = STATES.flatMap((state, place) => [[place / 6, colour[state] || colour.card], [(place + 1) / 6, colour[state] || colour.card]]);
  const [left, right] = range.map(local);
  const trace = {z, type: "heatmap", x0: left + (right - left) / bins / 2, dx: (right - left) / bins, colorscale: scale, zmin: -0.5, zmax: 5.5, showscale: false, hoverinfo: "none", zsmooth: false};
  const every = Math.ceil(rows.length / 14);
  const ticks = rows.map((_, place) => place).filter((place) => place % every === 0);
  const losses = lossesOf(rows, range, now);
  const marks = {x: losses.map(([at]) => local(at)), y: losses.map(([, row]) => row), text: losses.map(([, , text]) => text), type: "scatter", mode: "markers", hoverinfo: "text", marker: {symbol: "x", color: colour.lost, size: 8, line: {color: colour.card, width: 1}}};
  const axis = {range: [rows.length - 0.5, -0.5], autorange: false, tickvals: ticks, ticktext: ticks.map((place) => plainText(shortName(rows[place].label))), showgrid: false, automargin: false};
  return [[trace, marks], layout(colour, {xaxis: {...timeAxis(range), showgrid: false}, yaxis: axis, height: Math.min(640, 80 + rows.length * 3), uirevision: `${rows.length}`}), rows];
}

// ---- recoveries ------------------------------------------------------------------------------------------------

function phasesFigure(story) {
  const colour = colours();
  const shown = story.interruptions.filter((each) => each.kind !== "boot" && each.kind !== "next run").slice(-MOST_RECOVERIES);
  const x = shown.map((each) => `${SIGN_OF_KIND[each.kind] || "·"} ${each.number}`);
  const parts = shown.map((each) => each.phases || PHASES.map((_, place) => (place ? 0 : each.seconds)));
  const words = (each, phases) => `<b>${plainText(each.kind)}</b>, ${shortText(each.seconds)} without a step, ${clockText(each.start, false)}<br>${each.round ? `${each.phases ? "led to" : "in"} round ${plainText(each.round)}` : "led to no round"}${each.phases ? `<br>${PHASES.map((phase, at) => `${phase} ${shortText(phases[at])}`).join("<br>")}` : ""}${each.failed ? `<br>${countText(each.failed, "round")} failed on the way` : ""}<br>${plainText(each.cause).slice(0, 120)}`;
  const traces = PHASES.map((phase, place) => ({
    x, y: parts.map((phases) => phases[place]), name: phase, type: "bar", hoverinfo: "text", textposition: "none",
    text: shown.map((each, at) => words(each, parts[at])),
    marker: {color: PHASE_COLOURS[place], pattern: {shape: PHASE_PATTERNS[place], fgcolor: colour.card, fillmode: "overlay", size: 5, solidity: 0.2}},
  }));
  const whole = {xaxis: {type: "category", nticks: 12, tickangle: "auto", fixedrange: true}, yaxis: {ticksuffix: " s", rangemode: "tozero", autorange: true, nticks: 6, fixedrange: true}, barmode: "stack", bargap: 0.3, height: 260, showlegend: true, legend: {orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: {size: 11, color: colour.quiet}, traceorder: "normal"}, margin: {l: frame.left, r: frame.right, t: 30, b: 40}};
  return [shown.length ? traces : [], layout(colour, whole), shown.length];
}

const SIGN_OF_KIND = {failure: "✕", preemption: "▼", resize: "◆", unproven: "■", stall: "◷"};
