"use strict";
// What the page knows of the run: it is sent everything once, then what has changed.

const STATES = ["empty", "booting", "waiting", "training", "leaving", "lost"];
const KINDS = {start: "start", failure: "failure", preemption: "preemption", resize: "resize", unproven: "unproven connection"};
const PHASES = ["unnoticed", "detect", "abort", "wait", "rendezvous", "sync", "first step"];
const MOST_LINES = 2000;

class Story {
  constructor() {
    this.clear();
    this.link = "live";
    this.why = "";
    this.ahead = 0; // the driver's clock, of ours, in seconds
    this.version = 0; // grows with each message
  }

  clear() {
    this.head = null;
    this.rounds = new Map();
    this.interruptions = [];
    this.lanes = new Map();
    this.points = [];
    this.undone = []; // stretches of the points whose steps were made again later
    this.progress = null;
    this.hosts = new Map();
    this.usage = {points: [], rows: []};
    this.log = [];
  }

  // Takes a message in; returns the parts that have changed.
  take(update) {
    const news = new Set(["head"]);
    this.version += 1;
    if (update.whole) {
      this.clear();
      for (const part of ["rounds", "interruptions", "lanes", "curve", "usage", "hosts", "log"]) news.add(part);
    }
    this.link = update.link;
    this.why = update.why;
    this.ahead = update.time - Date.now() / 1000;
    if (update.head) this.head = update.head;
    if (update.rounds) {
      news.add("rounds");
      if (update.rounds.whole) this.rounds.clear();
      for (const round of update.rounds.rounds) this.rounds.set(round.id, round);
    }
    if (update.interruptions) {
      news.add("interruptions");
      if (update.interruptions.whole) this.interruptions = [];
      this.interruptions.push(...update.interruptions.interruptions);
    }
    if (update.lanes) {
      news.add("lanes");
      if (update.lanes.whole) this.lanes.clear();
      for (const lane of update.lanes.lanes) this.takeLane(lane);
    }
    if (update.curve) {
      news.add("curve");
      this.progress = update.curve.progress;
      if (update.curve.whole) this.points = [];
      this.points.push(...update.curve.points);
      this.undone = update.curve.undone;
    }
    if (update.usage) {
      news.add("usage");
      if (update.usage.whole) this.usage.points = [];
      this.usage.points.push(...update.usage.points);
      this.usage.rows = update.usage.rows;
    }
    for (const host of update.hosts || []) {
      news.add("hosts");
      if (host.text) this.hosts.set(host.name, host);
      else this.hosts.delete(host.name);
    }
    if (update.log) {
      news.add("log");
      this.log.push(...update.log);
      if (this.log.length > MOST_LINES) this.log.splice(0, this.log.length - MOST_LINES);
    }
    return news;
  }

  takeLane(update) {
    const key = update.host + ":" + update.slot;
    let lane = this.lanes.get(key);
    if (!lane) this.lanes.set(key, lane = {key, host: update.host, slot: update.slot, steps: []});
    lane.steps.length = update.from;
    lane.steps.push(...update.steps);
  }

  // The time up to which there is something to draw, by the driver's clock.
  now() {
    if (this.head.ended) return this.head.ended.time;
    return this.link === "live" ? Math.max(this.head.now, Date.now() / 1000 + this.ahead) : this.head.now;
  }

  // Whether nothing more will come: the run has ended, or its driver is gone for good.
  get over() {
    return Boolean(this.head.ended) || this.link === "record";
  }

  // How many workers its rounds had: at least, at most, and on average over the time in which they trained.
  sizes() {
    let [least, most, seconds, work] = [Infinity, 0, 0, 0];
    for (const {size, assigned, ended} of this.rounds.values()) {
      const lasted = Math.max(0, (ended === null ? this.now() : ended) - assigned);
      least = Math.min(least, size);
      most = Math.max(most, size);
      seconds += lasted;
      work += size * lasted;
    }
    return {least: most ? least : 0, most, mean: seconds ? work / seconds : most};
  }

  // How it is, in one word, and a sign for those who do not see its colour.
  state() {
    const ended = this.head.ended;
    if (ended) return {done: ["done", "✓", "done"], stopped: ["stopped", "■", "stopped"]}[ended.end] || ["failed", "✕", ended.end];
    if (this.link === "record") return ["lost", "?", "not ended"];
    if (this.link === "lost") return ["lost", "✕", "driver lost"];
    if (this.head.size) return ["training", "▶", "training"];
    return this.head.rounds ? ["waiting", "◔", "waiting"] : ["starting", "◌", "starting"];
  }
}

// ---- words -----------------------------------------------------------------------------------------------------

function spanText(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const [minutes, hours, days] = [Math.floor(whole / 60), Math.floor(whole / 3600), Math.floor(whole / 86400)];
  if (days) return `${days} d ${hours % 24} h`;
  if (hours) return `${hours} h ${minutes % 60} min`;
  return minutes ? `${minutes} min ${whole % 60} s` : `${whole} s`;
}

function shortText(seconds) {
  if (seconds >= 60) return spanText(seconds);
  return seconds >= 1 ? `${seconds.toFixed(1)} s` : `${Math.round(seconds * 1000)} ms`;
}

function countText(count, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}

// Steps that were made again: of a run, or of one of its rounds or interruptions. In restart mode no step is seen.
function lostText(head, part = head) {
  return head.steps_lost === null ? "–" : (part === head ? head.steps_lost : part.lost).toLocaleString("en");
}

function numberText(value) {
  if (value === null || value === undefined) return "no number";
  const size = Math.abs(value);
  return size && (size < 1e-3 || size >= 1e6) ? value.toExponential(3) : String(Number(value.toPrecision(4)));
}

// What a run is called, by its user and by edriver.
function runName({name, run_id}) {
  return [name, run_id ? `run ${run_id}` : "a run"].filter(Boolean).join(", ");
}

function clockText(time, withDay) {
  const at = new Date(time * 1000);
  const two = (number) => String(number).padStart(2, "0");
  const clock = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return withDay ? `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock}` : clock;
}

// A row, and its cells, of a table that is shown as a few lines a row on a narrow screen: to a screen reader it stays one.
function keepTable(row) {
  row.setAttribute("role", "row");
  for (const each of row.children) each.setAttribute("role", each.tagName === "TH" ? "columnheader" : "cell");
}
