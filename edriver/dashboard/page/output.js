"use strict";
// What workers have written lately: asked for once in a while, as long as the page is looked at; of a run that has ended,
// part of the page. A line: number, time, rank or slot, whether it is stderr's, text, slot, worker, and whether the next one
// of this worker and stream takes its place, as the states of a progress bar do.

const MOST_OUTPUT_LINES = 500;
const OUTPUT_INTERVAL_MS = 1500;

class WorkerOutput {
  constructor() {
    this.lines = [];
    this.asking = false;
  }

  start() {
    element("output-card").hidden = false;
    element("output-of").addEventListener("input", () => {
      this.lines = [];
      element("output").textContent = "";
      this.ask();
    });
    setInterval(() => this.ask(), OUTPUT_INTERVAL_MS);
  }

  // What a page of records has, of the chosen slot.
  show(lines) {
    if (!lines.length) return;
    element("output-card").hidden = false;
    pickSlots(element("output-of"));
    const draw = () => {
      const of = element("output-of").value;
      this.lines = lines.filter(([, , , , , slot]) => !of || slot === of);
      this.draw();
    };
    element("output-of").addEventListener("input", draw);
    put("output-note", "the latest lines of each worker; edriver logs prints more");
    draw();
  }

  async ask() {
    if (this.asking || document.hidden || !story.head) return;
    this.asking = true;
    pickSlots(element("output-of"));
    const of = element("output-of").value;
    const place = slotQuery(of);
    place.set("since", this.lines.length ? this.lines[this.lines.length - 1][0] : 0);
    try {
      const answer = await fetch(`output?${place}`);
      if (answer.ok && of === element("output-of").value) this.take(await answer.json());
    } catch {
      // the page says elsewhere that the driver is away
    }
    this.asking = false;
  }

  take(found) {
    put("output-note", found.why || (this.lines.length || found.lines.length ? `the latest ${MOST_OUTPUT_LINES} lines; edriver logs prints more` : "nothing has been written yet"));
    if (!found.lines.length) return;
    for (const line of found.lines) {
      this.lines = this.lines.filter((each) => !(each[7] && each[6] === line[6] && each[3] === line[3]));
      this.lines.push(line);
    }
    this.lines = this.lines.slice(-MOST_OUTPUT_LINES);
    this.draw();
  }

  draw() {
    const shown = element("output");
    const atEnd = shown.scrollTop + shown.clientHeight >= shown.scrollHeight - 8;
    shown.replaceChildren(...this.lines.map(([, time, place, stderr, text]) => {
      const line = document.createElement("span");
      line.textContent = `${clockText(time, false)} [${place}] ${text}\n`;
      if (stderr) line.className = "stderr";
      return line;
    }));
    if (atEnd) shown.scrollTop = shown.scrollHeight;
  }
}

// The slots there are, in their order; what was chosen stays.
function pickSlots(select) {
  const slots = [...story.lanes.values()].sort((a, b) => a.host.localeCompare(b.host, "en", {numeric: true}) || a.slot - b.slot).map((lane) => lane.key);
  if (select.options.length === slots.length + 1) return;
  const chosen = select.value;
  select.replaceChildren(...["", ...slots].map((key) => {
    const option = document.createElement("option");
    option.value = key;
    option.textContent = key || "all workers";
    return option;
  }));
  select.value = chosen;
}

// The query for a chosen slot, HOST:SLOT, of the run that is shown; empty: all slots.
function slotQuery(of) {
  const colon = of.lastIndexOf(":");
  const query = new URLSearchParams(of ? {host: of.slice(0, colon), slot: of.slice(colon + 1)} : {});
  const run = new URLSearchParams(location.search).get("run");
  if (run) query.set("run", run);
  return query;
}
