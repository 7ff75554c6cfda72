"use strict";
// What is text: the headline, the hosts, the log. Whatever comes from the run goes in as text, never as HTML.

const MOST_HOSTS = 200;
const MOST_SHOWN = 200;
const MOST_WARNINGS = 3;
const SIGNS = {loss: "✕", round: "▶", host: "▪", remark: "·", end: "■"};

function put(id, text) {
  const at = document.getElementById(id);
  if (at.textContent !== text) at.textContent = text;
  return at;
}

function drawHead(story) {
  const head = story.head;
  const [state, sign, word] = story.state();
  document.getElementById("state").dataset.state = state;
  put("state-mark", sign);
  put("state-word", word);
  put("doing", head.doing);
  const now = story.now();
  const which = [runName(head), spanText(now - head.began), ...(head.mode ? [head.mode] : [])];
  put("which", which.join(" · "));
  const link = {lost: `the driver does not answer; asking again (${story.why})`, ended: "the run has ended: no more events will follow", away: "this page has lost its server: is edriver dashboard still running?"};
  put("link", link[story.link] ? `· ${link[story.link]}` : "").dataset.link = story.link === "away" ? "lost" : story.link;
  document.title = [`${sign} ${story.over ? word : `${head.size} ${word}`}`, head.name || head.run_id].filter(Boolean).join(" · ");
  drawIcon(state, sign);
  drawAbout(head.about || []);
  drawSize(story);
  put("goodput", head.goodput === null ? "–" : `${(100 * head.goodput).toFixed(1)} %`);
  const spent = Object.entries(head.time_spent || {}).filter(([kind, seconds]) => kind !== "training" && seconds >= 0.0005).sort((a, b) => b[1] - a[1]);
  const known = head.time_spent && "unknown" in head.time_spent ? "not known: edriver sees no steps in restart mode" : "of wall time in steps that count";
  put("goodput-note", spent.length ? `${known}; ${spent.slice(0, 2).map(([kind, seconds]) => `${kind} ${shortText(seconds)}`).join(", ")}` : known);
  put("lost", lostText(head));
  put("rounds", head.rounds.toLocaleString("en"));
  put("rounds-note", [countText(head.failures, "failure"), countText(head.preemptions, "preemption"), countText(head.resizes, "resize"), ...(head.unproven ? [countText(head.unproven, KINDS.unproven)] : [])].join(", "));
  drawWarnings(head.warnings || [], now);
  drawFailure(head.failure, now);
  drawPace(head.pace, now);
  drawProgress(story);
  drawRecovery(head.recoveries);
}

// The state in the browser's tab: its sign on its colour.
function drawIcon(state, sign) {
  const icon = document.querySelector("link[rel=icon]");
  if (icon.dataset.state === state) return;
  icon.dataset.state = state;
  const tint = getComputedStyle(document.getElementById("state")).color;
  icon.href = `data:image/svg+xml,${encodeURIComponent(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="${tint}"/><text x="16" y="23" font-size="20" text-anchor="middle" fill="white">${sign}</text></svg>`)}`;
}

// What was started, where, and by whom. A report has it in its summary.
function drawAbout(about) {
  const at = document.getElementById("about");
  document.getElementById("about-card").hidden = !about.length || Boolean(document.querySelector(".summary"));
  const text = JSON.stringify(about);
  if (at.dataset.shown === text) return;
  at.dataset.shown = text;
  at.replaceChildren(...about.map(([word, words]) => {
    const pair = document.createElement("div");
    pair.dataset.word = word;
    pair.append(Object.assign(document.createElement("dt"), {textContent: word}), Object.assign(document.createElement("dd"), {textContent: words}));
    return pair;
  }));
}

// What has impaired the run although it trains on, the latest first; the events have all of it.
function drawWarnings(warnings, now) {
  const lines = warnings.slice(0, MOST_WARNINGS).map(([text, time, count]) => `▲ ${text} (${clockText(time, now - time > 86400)}${count > 1 ? `, ${count} times` : ""})`);
  const rest = warnings.length - lines.length;
  put("warnings", [...lines, ...(rest > 0 ? [`and ${countText(rest, "other warning")}: see the events`] : [])].join("\n")).hidden = !lines.length;
}

// How many workers train now; of a run that is over, how many did.
function drawSize(story) {
  const head = story.head;
  if (!story.over) {
    put("size", String(head.size));
    const resized = head.size_limit && head.size_limit < head.max_np ? `, resized to ${head.size_limit}` : "";
    put("size-note", head.max_np ? `of ${head.min_np} to ${head.max_np} workers${resized}${head.replicas ? `, ${head.replicas}` : ""}` : "workers");
    return;
  }
  const {least, most, mean} = story.sizes();
  put("size", most === least ? String(most) : `${least} to ${most}`);
  put("size-note", most ? `workers while it trained${most === least ? "" : `, ${mean.toFixed(1)} on average`}` : "no worker has trained");
}

// The last failure: open while the run is not healthy, a line once it is; what its reader opens stays open.
function drawFailure(failure, now) {
  document.getElementById("failure-card").hidden = !failure;
  if (!failure) return;
  const details = document.getElementById("failure-details");
  const key = JSON.stringify([failure.cause, failure.over]);
  if (details.dataset.key !== key) {
    details.dataset.key = key;
    details.open = !failure.over;
  }
  put("failure", failure.cause);
  const ago = failure.time === null ? "" : `${clockText(failure.time, now - failure.time > 86400)}, ${spanText(now - failure.time)} ago`;
  put("failure-time", [ago, failure.over ? "training has continued since" : ""].filter(Boolean).join("; "));
  put("failure-text", failure.text || "it has left no output");
}

// Who holds it up: in the headline, and what a step of each worker consists of, the slowest first.
function drawPace({hold_up, stragglers, steps, workers}, now) {
  const trouble = hold_up ? [`no step for ${spanText(now - hold_up.since)}; ${hold_up.text}`] : stragglers;
  put("trouble", trouble.join("\n")).hidden = !trouble.length;
  document.getElementById("steps-card").hidden = !steps.length;
  const shown = (seconds) => (seconds === null ? "not known" : shortText(seconds));
  document.getElementById("steps").replaceChildren(...steps.map((step) => {
    const row = document.createElement("tr");
    cell(row, String(step.rank), "right");
    cell(row, step.place);
    for (const part of ["step", "computing", "loading", "waiting"]) cell(row, shown(step[part]), "right");
    return row;
  }));
  const rest = workers - steps.length;
  put("steps-note", `the last quarter of a minute; those that wait least for others come first${rest > 0 ? `; ${rest.toLocaleString("en")} more are not shown` : ""}`);
}

function drawProgress(story) {
  const progress = story.progress;
  const epoch = document.getElementById("epoch");
  epoch.hidden = !(progress && progress.samples);
  if (!progress) return;
  put("progress", `step ${progress.steps.toLocaleString("en")}`);
  const going = story.head.size && !story.head.ended;
  const notes = going && progress.step_rate ? [`${progress.step_rate.toFixed(1)} steps/s`] : [];
  if (progress.samples) {
    epoch.value = progress.samples_done / progress.samples;
    notes.push(`epoch ${progress.epoch}, ${Math.floor((100 * progress.samples_done) / progress.samples)} % done`);
    if (going && progress.sample_rate > 0) {
      notes.push(`${spanText((progress.samples - progress.samples_done) / progress.sample_rate)} left of it`);
      notes.push(`${Math.round(progress.sample_rate).toLocaleString("en")} samples/s`);
    }
  }
  put("progress-note", notes.join(" · "));
}

function drawRecovery({count, median, longest}) {
  put("recovery", count ? shortText(median) : "–");
  put("recovery-note", count ? `median of ${countText(count, "failure")}; longest ${shortText(longest)}` : "no failure yet");
}

function cell(row, text, name) {
  const made = document.createElement("td");
  made.textContent = text;
  if (name) made.className = name;
  row.append(made);
  return made;
}

function drawHosts(story) {
  const wanted = document.getElementById("hosts-filter").value.toLowerCase();
  const words = (host) => host.until ? host.text.replace("is quarantined", `is quarantined until ${clockText(host.until, false)}`) : host.text;
  const trouble = (host) => host.troubled;
  const all = [...story.hosts.values()].filter((host) => !wanted || `${host.name} ${words(host)}`.toLowerCase().includes(wanted));
  const shown = [...all.filter(trouble), ...all.filter((host) => !trouble(host))].slice(0, MOST_HOSTS);
  const rows = shown.map((host) => {
    const row = document.createElement("tr");
    cell(row, host.name);
    cell(row, String(host.slots), "right").dataset.unit = host.slots === 1 ? "slot" : "slots";
    cell(row, String(host.workers), "right").dataset.unit = host.workers === 1 ? "worker" : "workers";
    cell(row, (trouble(host) ? "▲ " : "") + words(host), trouble(host) ? "trouble" : "");
    if (window.steering) steering.addTo(row, host);
    keepTable(row);
    return row;
  });
  const refocus = window.steering ? steering.keepFocus() : () => {};
  document.getElementById("hosts").replaceChildren(...rows);
  refocus();
  const rest = all.length - shown.length;
  put("hosts-note", `${countText(story.hosts.size, "host")}${rest > 0 ? `; ${rest.toLocaleString("en")} more are not shown: filter` : ""}`);
}

function line([seq, time, text, kind]) {
  const made = document.createElement("li");
  made.dataset.seq = seq;
  made.dataset.kind = kind;
  const at = document.createElement("time");
  at.textContent = clockText(time, false);
  at.title = clockText(time, true);
  at.dateTime = new Date(time * 1000).toISOString();
  const sign = document.createElement("b");
  sign.textContent = SIGNS[kind] || "·";
  sign.setAttribute("aria-hidden", "true");
  const words = document.createElement("span");
  words.textContent = text;
  made.append(at, sign, words);
  return made;
}

// Newest first. Only lines that are not there yet are made, unless the filter has changed.
function drawLog(story, anew) {
  const list = document.getElementById("log");
  const wanted = document.getElementById("log-filter").value.toLowerCase();
  const kind = document.getElementById("log-kind").value;
  if (anew) list.replaceChildren();
  const last = anew ? 0 : Number(list.dataset.last || 0);
  let first = story.log.length;
  while (first > 0 && story.log[first - 1][0] > last) first -= 1;
  const fits = (entry) => (!kind || entry[3] === kind) && (!wanted || entry[2].toLowerCase().includes(wanted));
  const fresh = story.log.slice(first).filter(fits).slice(-MOST_SHOWN).reverse();
  list.prepend(...fresh.map(line));
  while (list.childElementCount > MOST_SHOWN) list.lastElementChild.remove();
  list.dataset.last = story.log.length ? story.log[story.log.length - 1][0] : 0;
  const full = list.childElementCount >= MOST_SHOWN;
  put("log-note", story.log.length ? (full ? `the latest ${MOST_SHOWN} are shown; a filter finds older ones` : "") : "nothing has happened yet");
}
