"use strict";
// When charts are drawn: one at a time, and the longer it takes the more seldom, so that the page always answers. And
// what they share: the stretch of time that is shown, and the crosshair.

const PLOT = {displaylogo: false, responsive: true, displayModeBar: false, doubleClick: false};
const LEAST_PAUSE = 400; // ms between two drawings of one chart, unless its reader has just asked for it
const charts = [];
const view = {
  zoom: null, // of all charts over time: [from, to] in seconds, or everything
  range: () => [0, 1], // everything, or what of it is chosen
  grows: () => false, // whether time goes on in what is shown
  zoomed: () => {}, // called when another stretch is shown
  ready: () => true, // whether there is something to draw
};
let pending = false;

function element(id) {
  return document.getElementById(id);
}

function range() {
  return view.zoom || view.range();
}

class Chart {
  // `draw` gives what plotly draws, null: nothing. `time`: whether its x axis is the time that all such charts share.
  constructor(id, draw, {time = true, zoomed = null, hover = null} = {}) {
    Object.assign(this, {id, draw, time, zoomed, hover});
    this.dirty = true;
    this.last = -Infinity;
    this.took = 0;
    this.until = 0;
    this.listens = false;
  }

  get at() {
    return element(this.id);
  }

  // Whether there is something new to see, or so much time has passed that one would see it.
  wants(now) {
    if (now - this.last < Math.max(LEAST_PAUSE, 12 * this.took)) return false;
    if (this.dirty) return true;
    if (!this.time || view.zoom || !view.grows()) return false;
    const [from, to] = range();
    return to - this.until > Math.max(1, (to - from) / 300);
  }

  update() {
    const began = performance.now();
    this.dirty = false;
    this.until = range()[1];
    const figure = this.draw();
    const at = this.at;
    at.hidden = !figure;
    if (figure) {
      Plotly.react(at, figure[0], figure[1], PLOT);
      if (!this.listens) this.listen(at);
      crosshair.moved(this);
    }
    this.last = performance.now();
    this.took = this.last - began;
  }

  // Its reader looks at it: of all that are to be drawn, it is the first.
  comeFirst() {
    this.last = -Infinity;
  }

  listen(at) {
    this.listens = true;
    if (!this.time && !this.zoomed) return;
    at.on("plotly_relayout", (change) => {
      if (!("xaxis.range[0]" in change)) return;
      const ends = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
      this.comeFirst();
      if (this.zoomed) this.zoomed(ends);
      else zoomTo(ends.map(secondsOf));
    });
    at.on("plotly_doubleclick", () => {
      this.comeFirst();
      if (this.zoomed) this.zoomed(null);
      else zoomTo(null);
    });
    if (this.hover) at.on("plotly_hover", this.hover);
    crosshair.attach(this, at);
  }
}

// A time as plotly gives it, local time in ms or as a text, in seconds since the epoch.
function secondsOf(shown) {
  const wall = typeof shown === "number" ? shown : Date.parse(`${shown.replace(" ", "T")}${shown.includes(":") ? "" : "T00:00"}Z`);
  return (wall + new Date(wall).getTimezoneOffset() * 60000) / 1000;
}

function zoomTo(zoom) {
  view.zoom = zoom;
  view.zoomed();
  redraw(charts.filter((chart) => chart.time));
}

// As soon as can be: their reader waits for it.
function redraw(which) {
  for (const chart of which) {
    chart.dirty = true;
    chart.last = Math.min(chart.last, 0);
    chart.took = 0;
  }
  later();
}

// Soon, and once: what is due is done in the next free frames. The page does not wait for plotly, which is large.
function later() {
  if (pending || document.hidden || !window.Plotly || !view.ready()) return;
  pending = true;
  requestAnimationFrame(() => {
    pending = false;
    const due = charts.filter((chart) => chart.wants(performance.now())).sort((a, b) => a.last - b.last);
    if (!due.length) return;
    due[0].update();
    if (due.length > 1) setTimeout(later, 0);
  });
}

// A line through all charts at the place that is pointed at. Each chart says where a time is on its own axis.
const crosshair = {
  charts: new Map(), // with its line
  time: null,
  place: null, // on the axis of curves that have no common time

  attach(chart, at) {
    const line = document.createElement("div");
    line.className = "crosshair";
    line.hidden = true;
    at.append(line);
    this.charts.set(chart, line);
    at.addEventListener("mousemove", (event) => {
      const [left, width] = this.area(chart);
      const share = (event.clientX - at.getBoundingClientRect().left - left) / width;
      if (share >= 0 && share <= 1) this.point(chart, share);
      else this.leave();
    });
    at.addEventListener("mouseleave", () => this.leave());
  },

  detach(chart) {
    this.charts.delete(chart);
  },

  // Where the plot of a chart begins, and how wide it is.
  area(chart) {
    return [frame.left, Math.max(1, chart.at.clientWidth - frame.left - frame.right)];
  },

  ends(chart) {
    return chart.ends ? chart.ends() : range();
  },

  point(chart, share) {
    const [from, to] = this.ends(chart);
    this.show(chart, from + share * (to - from));
  },

  show(chart, place) {
    this.place = place;
    this.time = chart.timeAt ? chart.timeAt(place) : place;
    for (const [each] of this.charts) this.moved(each);
    if (view.pointed) view.pointed(this.time, place);
  },

  leave() {
    this.time = this.place = null;
    for (const [each] of this.charts) this.moved(each);
    if (view.pointed) view.pointed(null, null);
  },

  moved(chart) {
    const line = this.charts.get(chart);
    if (!line) return;
    const place = this.place === null ? null : chart.placeOf ? chart.placeOf(this.time, this.place) : this.time;
    const [from, to] = this.ends(chart);
    line.hidden = place === null || place < from || place > to;
    if (!line.hidden) {
      const [left, width] = this.area(chart);
      line.style.left = `${left + ((place - from) / (to - from)) * width}px`;
    }
    if (chart.pointed) chart.pointed(place);
  },
};

// Which time zone the page's times are in.
function zoneText() {
  const minutes = -new Date().getTimezoneOffset();
  const two = (number) => String(number).padStart(2, "0");
  const ahead = `UTC${minutes < 0 ? "−" : "+"}${two(Math.floor(Math.abs(minutes) / 60))}:${two(Math.abs(minutes) % 60)}`;
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  return !minutes ? "times are in UTC" : `times are in ${zone}, ${ahead}`;
}
