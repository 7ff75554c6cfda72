"use strict";
// The list of runs: asked for once in a while, as long as it is looked at. What a run calls itself goes in as text.

const LIST_INTERVAL_MS = 5000;
const MOST_COMPARED = 8;
const RUN_SIGNS = {running: "▶", done: "✓", stopped: "■", failed: "✕", lost: "?"};
const RUN_COLOURS = {running: "training", done: "done", stopped: "stopped", failed: "failed", lost: "lost"};
const COLUMNS = [
  {name: "name", of: (run) => run.name || run.run_id, text: (run) => run.name || run.run_id},
  {name: "state", of: (run) => run.state, text: (run) => run.state},
  {name: "started", of: (run) => run.start, text: (run) => clockText(run.start, true)},
  {name: "took", of: (run) => run.seconds, text: (run) => spanText(run.seconds), right: true},
  {name: "workers", of: (run) => run.size, text: (run) => (run.size === null ? "–" : String(run.size)), right: true, unit: "workers"},
  {name: "steps", of: (run) => run.steps, text: (run) => (run.steps === null ? "–" : run.steps.toLocaleString("en")), right: true, unit: "steps"},
  {name: "goodput", of: (run) => run.goodput, text: (run) => (run.goodput === null ? "–" : `${(100 * run.goodput).toFixed(1)} %`), right: true, unit: "goodput"},
  {name: "tags", of: (run) => tagText(run), text: (run) => tagText(run)},
  {name: "commit", of: (run) => run.commit, text: (run) => run.commit.slice(0, 10)},
  {name: "command", of: (run) => run.command.join(" "), text: (run) => run.command.join(" ")},
];
const list = {runs: [], chosen: new Set(), by: "started", falling: true, shown: ""};

// What stands beside a number where a row is a few lines, without the heads of columns; empty: the number is not shown there.
function unitOf({of, unit}, run) {
  return of(run) === null ? "" : of(run) === 1 ? unit.replace(/s$/, "") : unit;
}

function tagText(run) {
  return Object.entries(run.tags).map(([name, value]) => `${name}=${value}`).join(" ");
}

function put(id, text) {
  const at = document.getElementById(id);
  if (at.textContent !== text) at.textContent = text;
  return at;
}

function sorted(runs) {
  const {of} = COLUMNS.find((column) => column.name === list.by);
  const order = (a, b) => {
    const [x, y] = [of(a), of(b)];
    if (x === y || (x === null && y === null)) return b.start - a.start;
    if (x === null || x === "") return 1; // what is not known comes last
    if (y === null || y === "") return -1;
    return (typeof x === "string" ? x.localeCompare(y, "en", {numeric: true}) : x - y) * (list.falling ? -1 : 1);
  };
  return [...runs].sort(order);
}

function drawHeads() {
  const head = document.getElementById("runs-head");
  const blank = document.createElement("th");
  blank.scope = "col";
  const word = document.createElement("span");
  word.className = "aside";
  word.textContent = "compare";
  blank.append(word);
  head.replaceChildren(blank, ...COLUMNS.map((column) => {
    const cell = document.createElement("th");
    cell.scope = "col";
    if (column.right) cell.className = "right";
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    const chosen = column.name === list.by;
    button.textContent = `${column.name}${chosen ? (list.falling ? " ↓" : " ↑") : ""}`;
    cell.setAttribute("aria-sort", chosen ? (list.falling ? "descending" : "ascending") : "none");
    button.addEventListener("click", () => {
      list.falling = chosen ? !list.falling : ["started", "took", "workers", "steps", "goodput"].includes(column.name);
      list.by = column.name;
      draw();
      document.querySelectorAll("#runs-head button")[COLUMNS.indexOf(column)].focus();
    });
    cell.append(button);
    return cell;
  }));
}

function rowOf(run) {
  const row = document.createElement("tr");
  const pick = document.createElement("td");
  const box = document.createElement("input");
  box.type = "checkbox";
  box.checked = list.chosen.has(run.run_id);
  box.setAttribute("aria-label", `compare ${run.name || run.run_id}`);
  box.addEventListener("input", () => {
    if (box.checked) list.chosen.add(run.run_id);
    else list.chosen.delete(run.run_id);
    offer();
  });
  pick.append(box);
  row.append(pick);
  for (const column of COLUMNS) {
    const cell = document.createElement("td");
    if (column.right) cell.className = "right";
    if (column.unit) cell.dataset.unit = unitOf(column, run);
    if (column.name === "name") {
      cell.className = "name";
      cell.title = `${run.name} ${run.run_id}`.trim();
      const link = document.createElement("a");
      link.href = `run?${new URLSearchParams({run: run.run_id})}`;
      link.textContent = column.text(run);
      cell.append(link);
      if (run.name) {
        const id = document.createElement("span");
        id.className = "raw";
        id.textContent = ` ${run.run_id}`;
        cell.append(id);
      }
    } else if (column.name === "state") {
      cell.textContent = `${RUN_SIGNS[run.state] || "·"} ${run.state}`;
      cell.className = "run-state";
      cell.dataset.state = RUN_COLOURS[run.state] || "";
    } else if (column.name === "tags") {
      for (const [name, value] of Object.entries(run.tags)) {
        const tag = document.createElement("span");
        tag.className = "tag";
        tag.textContent = `${name}=${value}`;
        cell.append(tag, " ");
      }
    } else {
      cell.textContent = column.text(run);
      if (column.name === "command" || column.name === "commit") cell.className = "code";
      if (column.name === "commit" || column.name === "command") cell.title = column.name === "commit" ? run.commit : cell.textContent;
    }
    row.append(cell);
  }
  keepTable(row);
  return row;
}

function draw() {
  const wanted = document.getElementById("runs-filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (run) => {
    const text = [run.run_id, run.name, run.state, run.commit, tagText(run), run.command.join(" ")].join(" ").toLowerCase();
    return wanted.every((word) => text.includes(word));
  };
  const found = sorted(list.runs.filter(fits));
  const shown = JSON.stringify([found, list.by, list.falling]);
  if (shown !== list.shown) {
    list.shown = shown;
    const kept = document.activeElement && document.activeElement.closest("#runs tr");
    const focused = kept ? [[...kept.parentElement.children].indexOf(kept), [...kept.querySelectorAll("a,input")].indexOf(document.activeElement)] : null;
    drawHeads();
    document.getElementById("runs").replaceChildren(...found.map(rowOf));
    const row = focused && document.getElementById("runs").children[focused[0]];
    if (row && focused[1] >= 0) row.querySelectorAll("a,input")[focused[1]].focus();
  }
  document.getElementById("runs-empty").hidden = list.runs.length > 0;
  const going = list.runs.filter((run) => run.state === "running").length;
  put("runs-note", list.why || `${countText(list.runs.length, "run")}, ${going} of them running${found.length < list.runs.length ? `; ${found.length} shown` : ""}`);
  offer();
}

function offer() {
  const known = list.runs.filter((run) => list.chosen.has(run.run_id));
  const button = document.getElementById("compare");
  button.disabled = known.length < 2 || known.length > MOST_COMPARED;
  button.textContent = known.length > MOST_COMPARED ? `compare at most ${MOST_COMPARED}` : known.length ? `compare ${known.length}` : "compare";
}

function compare() {
  const asked = new URLSearchParams();
  for (const run of list.runs) if (list.chosen.has(run.run_id)) asked.append("run", run.run_id);
  location.href = `compare?${asked}`;
}

async function ask() {
  if (document.hidden && list.shown) return;
  try {
    const answer = await fetch("runs.json");
    const found = await answer.json();
    list.runs = found.runs;
    list.why = found.why;
    draw();
  } catch {
    put("runs-note", "this page has lost its server: is edriver dashboard still running?");
  }
}

document.getElementById("runs-filter").addEventListener("input", draw);
document.getElementById("compare").addEventListener("click", compare);
document.addEventListener("visibilitychange", ask);
(async () => {
  for (;;) {
    await ask();
    await new Promise((resolve) => setTimeout(resolve, LIST_INTERVAL_MS));
  }
})();
