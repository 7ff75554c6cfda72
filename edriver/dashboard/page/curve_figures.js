"use strict";
// Curves, drawn by plotly: of one run or of several, with what happened to the run behind them.

const CURVE_COLOURS = {
  light: ["#0072b2", "#c34e00", "#00795a", "#a8437f", "#8a6100", "#5b4bb5"],
  dark: ["#4aa3df", "#ff8a4c", "#3fc79a", "#e29ac4", "#e8b339", "#a99bf5"],
}; // Okabe and Ito's, as dark, or bright, as lines on a card must be
const DASHES = ["solid", "dash", "dot", "dashdot"];
const CURVE_HEIGHT = 220;
const MOST_POINTS = 9000; // of one chart
const MOST_MARKS = 400; // rounds, and interruptions, that are marked in one chart
const MOST_LABELS = 9;
const UNITS = [["s", 1], ["min", 60], ["h", 3600], ["d", 86400]];

// The look of the n-th of several curves.
function look(place) {
  const colours = matchMedia("(prefers-color-scheme: dark)").matches ? CURVE_COLOURS.dark : CURVE_COLOURS.light;
  return {color: colours[place % colours.length], dash: DASHES[Math.floor(place / colours.length) % DASHES.length]};
}

function faint(colour, share) {
  const parts = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return `rgba(${parts.join(",")},${share})`;
}

// What an axis shows in which numbers: `shown` is plotly's, `value` ours.
function scaleOf(axis, [from, to]) {
  if (axis === "wall") return {shown: local, value: secondsOf, layout: timeAxis([from, to])};
  const [unit, size] = axis === "elapsed" ? UNITS.findLast(([, size]) => to - from >= 3 * size) || UNITS[0] : ["", 1];
  const layout = {range: [from / size, to / size], autorange: false, nticks: innerWidth < 600 ? 4 : 8, ticksuffix: unit && ` ${unit}`, tickformat: axis === "elapsed" ? "" : ",~r", exponentformat: "none"};
  return {shown: (value) => value / size, value: (x) => Number(x) * size, layout};
}

// One curve: what was measured, faint where it is smoothed; what of it was undone; where it was no number.
function curveTraces({series, key, style, undone}, axis, ends, weight, logarithmic, scale, most) {
  const {xs, raw, ys} = series.curve(key, axis, weight);
  const places = drawnPlaces(xs, ys, ends, most);
  const fit = (value) => (logarithmic && value !== null && value <= 0 ? null : value);
  const x = places.map((place) => scale.shown(xs[place]));
  const shape = key === "own:size" ? "hv" : "linear";
  const common = {type: "scatter", mode: xs.length > 1 ? "lines" : "markers", hoverinfo: "skip", connectgaps: false};
  const traces = [];
  if (weight && key !== "own:size") {
    const measured = drawnPlaces(xs, raw, ends, most);
    traces.push({...common, x: measured.map((place) => scale.shown(xs[place])), y: measured.map((place) => fit(raw[place])), line: {color: faint(style.color, 0.28), width: 1}});
  }
  if (undone) {
    const [behind, values] = series.undoneCurve(key, axis);
    traces.push({...common, x: behind.map(scale.shown), y: values.map(fit), line: {color: faint(style.color, 0.55), width: 1, dash: "dot"}});
  }
  traces.push({...common, x, y: places.map((place) => fit(ys[place])), line: {color: style.color, dash: style.dash, width: 1.8, shape}});
  const missing = xs.map((_, place) => place).filter((place) => raw[place] === null);
  const finite = ys.filter((value) => value !== null && value !== undefined && (!logarithmic || value > 0));
  const foot = finite.length ? finite.reduce((least, value) => Math.min(least, value), Infinity) : 1;
  if (missing.length) {
    const some = missing.length > 200 ? missing.filter((_, place) => place % Math.ceil(missing.length / 200) === 0) : missing;
    traces.push({type: "scatter", mode: "markers", hoverinfo: "skip", x: some.map((place) => scale.shown(xs[place])), y: some.map(() => foot), marker: {symbol: "x", size: 7, color: style.color}});
  }
  return traces;
}

// Many bands or lines of one look, as one shape: plotly takes as long for each shape as for a whole curve.
class Strips {
  constructor(scale) {
    this.scale = scale;
    this.paths = new Map(); // by look
  }

  // A place as a path has it: plotly reads dates there only as texts.
  at(value) {
    const shown = this.scale.shown(value);
    return this.scale.layout.type === "date" ? new Date(shown).toISOString().replace("T", "_").replace("Z", "") : shown;
  }

  add(look, path) {
    const key = JSON.stringify(look);
    this.paths.set(key, (this.paths.get(key) || "") + path);
  }

  band(from, to, fillcolor, opacity, low = 0, high = 1) {
    const [x0, x1] = [this.at(from), this.at(to)];
    this.add({line: {width: 0}, fillcolor, opacity}, `M${x0},${low}L${x1},${low}L${x1},${high}L${x0},${high}Z`);
  }

  line(value, color) {
    const x = this.at(value);
    this.add({line: {width: 1, color, dash: "dot"}}, `M${x},0L${x},1`);
  }

  shapes(layer) {
    return [...this.paths].map(([look, path]) => ({type: "path", xref: "x", yref: "paper", layer, path, ...JSON.parse(look)}));
  }
}

// The interruptions in sight, each with its ends; of many, the longest.
function stopsOf(series, axis, [from, to]) {
  const stops = series.story.interruptions.map((each) => ({each, x0: series.at(each.start, axis), x1: series.at(each.start + each.seconds, axis)})).filter(({x0, x1}) => x0 !== null && x1 >= from && x0 <= to);
  if (stops.length > MOST_MARKS) stops.sort((a, b) => b.each.seconds - a.each.seconds).length = MOST_MARKS;
  return stops;
}

// What happened to one run, behind its curves: a band where it stood still, a tint where it had fewer workers than at
// most, a line where its size changed, with both sizes.
function marksOf(series, axis, [from, to], scale, width) {
  const colour = colours();
  const least = (1.5 * (to - from)) / width;
  const strips = new Strips(scale);
  const rounds = [...series.story.rounds.values()];
  const most = rounds.reduce((size, round) => Math.max(size, round.size), 0);
  const place = (time) => series.at(time, axis);
  const [annotations, changes] = [[], []];
  let tint = null;
  const paint = () => {
    if (tint && tint.size < most && tint.to > from && tint.from < to && tint.to - tint.from > least) strips.band(Math.max(tint.from, from), Math.min(tint.to, to), colour.waiting, 0.05 + Math.round(10 * (1 - tint.size / most)) / 50);
  };
  rounds.forEach((round, at) => {
    const x = place(round.assigned);
    const end = place(round.ended === null ? series.story.now() : round.ended);
    if (x === null || end === null) return;
    if (tint && tint.size === round.size && x - tint.to <= least) tint.to = Math.max(tint.to, end);
    else {
      paint();
      tint = {size: round.size, from: x, to: end};
    }
    const before = at ? rounds[at - 1] : null;
    if (before && before.size !== round.size && x >= from && x <= to) changes.push({x, round, before, weight: Math.abs(round.size - before.size)});
  });
  paint();
  const lines = changes.length > MOST_MARKS ? changes.sort((a, b) => b.weight - a.weight).slice(0, MOST_MARKS).sort((a, b) => a.x - b.x) : changes;
  let last = -Infinity;
  for (const {x, round, before} of lines) {
    strips.line(x, colour.quiet);
    if (x - last < ((to - from) * Math.max(46, width / MOST_LABELS)) / width) continue;
    last = x;
    annotations.push({xref: "x", yref: "paper", x: scale.shown(x), y: 1, yanchor: "bottom", yshift: -2, showarrow: false, text: `${SIGN_OF_KIND[round.kind] || ""} ${before.size}→${round.size}`, font: {size: 10, color: colour.quiet}});
  }
  for (const {each, x0, x1} of stopsOf(series, axis, [from, to])) strips.band(x0, Math.max(x1, x0 + least), each.kind === "failure" || each.kind === "stall" ? colour.lost : colour.quiet, 0.3);
  return {shapes: strips.shapes("below"), annotations};
}

// The same of one of several runs: a strip at the foot, in its colour, where it stood still.
function stripOf(series, axis, [from, to], scale, width, place, colour) {
  const least = (1.5 * (to - from)) / width;
  const strips = new Strips(scale);
  for (const {x0, x1} of stopsOf(series, axis, [from, to])) strips.band(x0, Math.max(x1, x0 + least), colour, 0.9, place * 0.03, place * 0.03 + 0.025);
  return strips.shapes("above");
}

// One chart of some curves. `marked`: the run whose rounds and interruptions stand behind it; null: strips of each run.
function curvesFigure(curves, {axis, ends, weight, logarithmic, width, marked, runs}) {
  const colour = colours();
  const scale = scaleOf(axis, ends);
  const most = Math.max(60, Math.floor(MOST_POINTS / Math.max(1, curves.length)));
  const traces = curves.flatMap((curve) => curveTraces(curve, axis, ends, weight, logarithmic, scale, Math.min(most, 2 * width)));
  const {shapes, annotations} = marked ? marksOf(marked, axis, ends, scale, width) : {shapes: runs.flatMap(({series, style}, place) => stripOf(series, axis, ends, scale, width, place, style.color)), annotations: []};
  const sizes = curves.length && curves.every((curve) => curve.key === "own:size");
  const yaxis = {type: logarithmic ? "log" : "linear", autorange: true, nticks: 6, fixedrange: true, automargin: false, rangemode: sizes ? "tozero" : "normal", exponentformat: "power", ...(logarithmic ? {dtick: "D2", tickformat: "~r"} : {tickformat: sizes ? ",~r" : ""})};
  if (logarithmic) delete yaxis.dtick;
  return [traces, layout(colour, {xaxis: {...scale.layout, automargin: false}, yaxis, height: CURVE_HEIGHT, hovermode: false, shapes, annotations, margin: {l: frame.left, r: frame.right, t: 18, b: axis === "wall" ? 34 : 24}})];
}
