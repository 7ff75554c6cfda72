"use strict";
// What the page has the driver do, where its address allows that: drain, undrain, resize, stop. Each request goes to this
// page's own server, with the page's secret and a number of its own, and what comes of it stands where the button is.

const ANSWER_TIMEOUT_MS = 15000;

class Steering {
  constructor(section) {
    this.section = section;
    this.secret = section.dataset.secret;
    this.number = 0;
    this.answers = new Map(); // by host: what came of the last request: {text, refused}
    this.busy = new Set(); // hosts that a request is under way for
    this.whenSure = null; // what the dialog's button does
    this.askedFrom = null; // the key of the button that has opened it
    this.ended = false;
  }

  start() {
    const head = document.createElement("th");
    head.scope = "col";
    head.textContent = "steer";
    element("hosts-head").append(head);
    element("resize").addEventListener("submit", (event) => {
      event.preventDefault();
      const size = Number(element("resize-size").value);
      this.run({do: "resize", size}, (text, refused) => this.tell(text, refused));
    });
    element("stop").addEventListener("click", () => this.ask({
      title: "Stop the run?",
      text: "This ends all workers, as Ctrl-C in the run's terminal does. Everything that is not in a checkpoint is lost.",
      yes: "Stop the run",
      act: (reason) => this.run({do: "stop", reason}, (text, refused) => this.tell(text, refused)),
    }));
    element("ask-form").addEventListener("submit", (event) => {
      event.preventDefault();
      element("ask").close();
      this.whenSure(element("ask-reason").value, element("ask-slot").value);
    });
    element("ask-no").addEventListener("click", () => element("ask").close());
    element("ask").addEventListener("close", () => focusOn(this.askedFrom)); // its button may have been redrawn
  }

  // How the run stands now.
  look(story) {
    const {head} = story;
    if (head.ended && !this.ended) {
      this.ended = true;
      if (element("ask").open) element("ask").close();
      for (const each of this.section.querySelectorAll("button, input")) each.disabled = true;
      for (const button of document.querySelectorAll("#hosts button")) button.disabled = true;
      this.tell("the run has ended and can no longer be steered", false);
      return;
    }
    const size = element("resize-size");
    if (head.max_np && !size.max) {
      [size.min, size.max] = [head.min_np, head.max_np];
      size.value = head.size_limit || head.max_np;
    }
  }

  tell(text, refused) {
    put("steering-answer", text).dataset.refused = refused;
  }

  // A dialog that asks once more; look, if given, is called with the slot that is selected, at first and at each change.
  ask({title, text, yes, act, slots = 0, look = () => {}}) {
    put("ask-title", title);
    put("ask-text", text);
    put("ask-yes", yes);
    element("ask-reason").value = "";
    element("ask-part").hidden = slots < 2;
    element("ask-slot").replaceChildren(...["", ...Array(slots).keys()].map((slot) => {
      const option = document.createElement("option");
      option.value = slot;
      option.textContent = slot === "" ? "all of the host" : `slot ${slot}`;
      return option;
    }));
    element("ask-slot").onchange = () => look(element("ask-slot").value);
    look("");
    this.whenSure = act;
    this.askedFrom = document.activeElement.dataset.key;
    element("ask").showModal();
  }

  // The buttons of a host, and what came of the last one.
  addTo(row, host) {
    const made = document.createElement("td");
    const button = (word, act) => {
      const each = document.createElement("button");
      each.type = "button";
      each.textContent = word;
      each.dataset.key = `${word} ${host.name}`;
      each.setAttribute("aria-label", `${word.replace("…", "")} ${host.name}`);
      each.disabled = this.ended;
      each.setAttribute("aria-disabled", this.busy.has(host.name)); // one that is disabled would lose the focus
      each.addEventListener("click", () => this.busy.has(host.name) || act());
      made.append(each, " ");
    };
    if (host.drained !== "host" && host.slots) button("drain…", () => this.askDrain(host));
    if (host.drained) button("undrain", () => this.steerHost(host.name, {do: "undrain", host: host.name, slot: null}));
    const answer = document.createElement("span");
    answer.className = "note answer";
    const came = this.answers.get(host.name);
    if (came) [answer.textContent, answer.dataset.refused] = [came.text, came.refused];
    made.append(answer);
    row.append(made);
  }

  askDrain(host) {
    const text = "Its workers leave at an agreed step, and nothing is lost. The run does not use it again until you undrain it.";
    const slotOf = (slot) => (slot === "" ? null : Number(slot));
    let looks = 0;
    this.ask({
      title: `Drain host ${host.name}?`,
      text,
      look: (slot) => {
        const look = ++looks;
        this.run({do: "preview drain", host: host.name, slot: slotOf(slot)}, (found) => {
          if (look === looks && element("ask").open) put("ask-text", `${text} What it would do now: ${found}.`);
        });
      },
      yes: "Drain",
      slots: host.slots,
      act: (reason, slot) => this.steerHost(host.name, {do: "drain", host: host.name, slot: slotOf(slot), reason}),
    });
    element("ask").addEventListener("close", () => { looks += 1; }, {once: true});
  }

  async steerHost(name, order) {
    this.busy.add(name);
    this.answers.delete(name);
    drawHosts(story);
    await this.run(order, (text, refused) => {
      this.answers.set(name, {text, refused});
      put("steering-said", text); // the row is redrawn now and then, and would be read out each time
    });
    this.busy.delete(name);
    drawHosts(story);
  }

  // Have one request carried out, and say what came of it.
  async run(order, tell) {
    this.number += 1;
    let [text, refused] = ["", true];
    try {
      const answer = await fetch("steer", {
        method: "POST",
        headers: {"Content-Type": "application/json", "X-Edriver-Page": this.secret, "X-Edriver-Request": String(this.number)},
        body: JSON.stringify(order),
        cache: "no-store",
        credentials: "omit",
        redirect: "error",
        signal: AbortSignal.timeout(ANSWER_TIMEOUT_MS),
      });
      const found = await answer.json();
      [text, refused] = [found.done || found.why, !answer.ok];
    } catch {
      text = "no answer from this page's server: is edriver dashboard still running? Look at the events before you try again";
    }
    tell(text, refused);
  }

  // Hosts are redrawn whenever one has changed: returns what puts the focus back on the button that had it.
  keepFocus() {
    const at = document.activeElement;
    const key = at && at.closest("#hosts") ? at.dataset.key : null;
    return () => focusOn(key);
  }
}

// Focus the button of a host that has this key, or else another one of that host.
function focusOn(key) {
  if (!key) return;
  const host = key.slice(key.indexOf(" "));
  const buttons = [...document.querySelectorAll("#hosts button")];
  const next = buttons.find((each) => each.dataset.key === key) || buttons.find((each) => each.dataset.key.endsWith(host));
  if (next) next.focus({preventScroll: true});
}

if (document.getElementById("steering")) window.steering = new Steering(document.getElementById("steering"));
