"use strict";
// The table of each chart: the same in numbers and words, for those who do not see a chart, or want to read off it. A table
// is made when it is opened, and follows the run as long as it is open; it shows the part of time that the charts show.

const MOST_DATA_ROWS = 500;
const TABLE_PAUSE_MS = 2000;

const TABLES = {
  world: {
    of: "World size",
    heads: ["since", "until", "round", "workers", "because of", "cause", "steps lost"],
    rows: (story, [from, to]) => [...story.rounds.values()]
      .filter((round) => round.assigned <= to && (round.ended === null || round.ended >= from))
      .map((round) => [clockText(round.assigned, true), round.ended === null ? "now" : clockText(round.ended, true), round.id, String(round.size), KINDS[round.kind] || "", round.cause, lostText(story.head, round)]),
  },
  lanes: {
    of: "Worker slots",
    heads: ["since", "slot", "state", "for", "worker"],
    rows: (story, [from, to]) => [...story.lanes.values()]
      .flatMap((lane) => lane.steps.map(([begin, state, worker], place) => ({lane, begin, state, worker, end: place + 1 < lane.steps.length ? lane.steps[place + 1][0] : story.now()})))
      .filter(({begin, end, state}) => state && begin <= to && end >= from)
      .sort((a, b) => a.begin - b.begin)
      .map(({lane, begin, state, worker, end}) => [clockText(begin, true), lane.key, STATES[state], shortText(end - begin), String(worker)]),
  },
  phases: {
    of: "Interruptions",
    heads: ["since", "kind", "length", "round", ...PHASES.slice(0, -1), `then ${PHASES[PHASES.length - 1]}`, "steps lost", "cause"],
    rows: (story, [from, to]) => story.interruptions
      .filter((each) => each.start <= to && each.start + each.seconds >= from)
      .map((each) => [clockText(each.start, true), each.kind, shortText(each.seconds), each.round || "none", ...(each.phases || PHASES.map(() => null)).map((seconds) => (seconds === null ? "–" : shortText(seconds))), lostText(story.head, each), each.cause]),
  },
};

class DataTable {
  constructor(id, {of, heads, rows}) {
    Object.assign(this, {rows, shown: 0, text: ""});
    this.at = document.createElement("details");
    this.at.className = "data";
    const summary = document.createElement("summary");
    summary.append("as a table", Object.assign(document.createElement("span"), {className: "aside", textContent: `: ${of}`}));
    const scroll = document.createElement("div");
    scroll.className = "scroll";
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", `${of}, as a table`);
    const table = document.createElement("table");
    const head = table.createTHead().insertRow();
    for (const word of heads) head.append(Object.assign(document.createElement("th"), {scope: "col", textContent: word}));
    this.body = table.createTBody();
    this.note = Object.assign(document.createElement("p"), {className: "note"});
    scroll.append(table);
    this.at.append(summary, scroll, this.note);
    this.at.addEventListener("toggle", () => this.draw(story, true));
    element(id).after(this.at);
  }

  // Newest first. Nothing is touched where nothing has changed: a reader may be in the middle of it.
  draw(story, anew) {
    const now = performance.now();
    if (!this.at.open || !story.head || (!anew && now - this.shown < TABLE_PAUSE_MS)) return;
    this.shown = now;
    const all = this.rows(story, range());
    const rows = all.slice(-MOST_DATA_ROWS).reverse();
    const text = JSON.stringify(rows);
    if (text === this.text) return;
    this.text = text;
    this.body.replaceChildren(...rows.map((words) => {
      const row = document.createElement("tr");
      for (const word of words) cell(row, word);
      return row;
    }));
    this.note.textContent = rows.length < all.length ? `the latest ${rows.length} of ${all.length.toLocaleString("en")}` : rows.length ? "" : "nothing yet";
  }
}

class DataTables {
  start() {
    this.all = Object.entries(TABLES).map(([id, table]) => new DataTable(id, table));
  }

  draw(story, anew = false) {
    for (const table of this.all) table.draw(story, anew);
  }
}

const dataTables = new DataTables();
