"use strict";
// Several runs over one another: what they were, and their curves. Those that go on are asked for once in a while.

const COMPARE_INTERVAL_MS = 5000;
const compared = new URLSearchParams(location.search).getAll("run").slice(0, 8);
const known = new Map(); // by id: what the list says of it
const shown = []; // the Series of each that could be read, in the order of the address
const curves = new Curves(() => shown, {single: false});

function put(id, text) {
  const at = document.getElementById(id);
  if (at.textContent !== text) at.textContent = text;
  return at;
}

function cell(row, text, name) {
  const added = made("td", name || "", text);
  row.append(added);
  return added;
}

view.ready = () => shown.length > 0;

const FACTS = [
  ["state", (run) => run.state],
  ["started", (run) => clockText(run.start, true)],
  ["took", (run) => spanText(run.seconds)],
  ["workers at the end", (run) => (run.size === null ? "–" : String(run.size))],
  ["steps", (run) => (run.steps === null ? "–" : run.steps.toLocaleString("en"))],
  ["goodput", (run) => (run.goodput === null ? "–" : `${(100 * run.goodput).toFixed(1)} %`)],
];
const HEAD_FACTS = [
  ["rounds", (head) => countText(head.rounds, "round")],
  ["failures", (head) => String(head.failures)],
  ["steps lost", (head) => lostText(head)],
  ["median recovery", (head) => (head.recoveries.count ? shortText(head.recoveries.median) : "–")],
];

function drawFacts() {
  const all = element("facts-all").checked;
  const runs = shown.map((series) => [series, known.get(series.id)]);
  const head = made("th");
  head.scope = "col";
  head.append(made("span", "aside", "what"));
  element("facts-head").replaceChildren(head, ...runs.map(([series], place) => {
    const added = made("th");
    added.scope = "col";
    const mark = made("i", "swatch");
    mark.style.backgroundColor = look(place).color;
    const link = made("a", "", series.label);
    link.href = `run?${new URLSearchParams({run: series.id})}`;
    added.append(mark, link);
    if (runs.length > 1) {
      const off = made("a", "raw", " remove");
      const rest = new URLSearchParams();
      for (const id of compared) if (id !== series.id) rest.append("run", id);
      off.href = `compare?${rest}${location.hash}`;
      off.setAttribute("aria-label", `remove ${series.label}`);
      added.append(off);
    }
    return added;
  }));
  const rows = FACTS.map(([name, of]) => [name, runs.map(([, run]) => (run ? of(run) : "–"))]);
  rows.splice(6, 0, ...HEAD_FACTS.map(([name, of]) => [name, runs.map(([series]) => of(series.story.head))]));
  const about = runs.map(([series]) => new Map(series.story.head.about));
  for (const word of new Set(about.flatMap((each) => [...each.keys()]))) if (word !== "tags") rows.push([word, about.map((each) => each.get(word) || "–")]);
  for (const tag of new Set(runs.flatMap(([, run]) => (run ? Object.keys(run.tags) : [])))) rows.push([tag, runs.map(([, run]) => (run && Object.hasOwn(run.tags, tag) ? run.tags[tag] : "–"))]);
  element("facts").replaceChildren(...rows.map(([name, texts]) => {
    const row = document.createElement("tr");
    const differs = texts.some((text) => text !== texts[0]);
    row.hidden = !all && !differs && texts.length > 1;
    const word = made("th", "", name);
    word.scope = "row";
    row.append(word);
    for (const text of texts) cell(row, text);
    return row;
  }));
}

async function read(id) {
  const answer = await fetch(`curves?${new URLSearchParams({run: id})}`);
  if (!answer.ok) return (await answer.text()).trim();
  const data = await answer.json();
  let series = shown.find((each) => each.id === id);
  if (!data.head) return `nothing is recorded about run ${id} yet`;
  if (!series) {
    series = new Series(new Story(), "");
    series.id = id;
    shown.push(series);
    shown.sort((a, b) => compared.indexOf(a.id) - compared.indexOf(b.id));
  }
  series.story.take(data);
  const of = known.get(id);
  series.label = of && of.name ? `${of.name} ${id}` : id;
  return "";
}

async function readAll(first) {
  const list = await (await fetch("runs.json")).json();
  for (const run of list.runs) known.set(run.run_id, run);
  const wanted = compared.filter((id) => first || (known.get(id) || {}).state === "running" || (shown.find((series) => series.id === id) || {story: {link: ""}}).story.link === "live");
  const faults = (await Promise.all(wanted.map(read))).filter(Boolean);
  if (!wanted.length) return;
  if (shown.length) {
    drawFacts();
    curves.take();
    later();
  }
  if (first || faults.length) put("compare-note", faults.join("; ") || (shown.length ? zoneText() : "no runs are chosen"));
}

element("facts-all").addEventListener("input", drawFacts);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => [drawFacts(), redraw(charts)]);
document.addEventListener("visibilitychange", later);
setInterval(later, 250);
(async () => {
  for (let first = true; ; first = false) {
    try {
      if (first || !document.hidden) await readAll(first);
    } catch {
      put("compare-note", "this page has lost its server: is edriver dashboard still running?");
    }
    await new Promise((resolve) => setTimeout(resolve, COMPARE_INTERVAL_MS));
  }
})();
