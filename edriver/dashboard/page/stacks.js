"use strict";
// Where the threads of workers stand: asked for when the button is pressed.

class WorkerStacks {
  start() {
    element("stacks-card").hidden = false;
    element("stacks-of").addEventListener("pointerdown", () => pickSlots(element("stacks-of")));
    element("stacks-of").addEventListener("focus", () => pickSlots(element("stacks-of")));
    element("stacks-ask").addEventListener("click", () => this.ask());
  }

  async ask() {
    const button = element("stacks-ask");
    button.disabled = true;
    put("stacks-note", "asking");
    try {
      const answer = await fetch(`stacks?${slotQuery(element("stacks-of").value)}`);
      if (!answer.ok) throw new Error(answer.statusText);
      this.show(await answer.json());
    } catch {
      put("stacks-note", "this page's server does not answer");
    }
    button.disabled = false;
  }

  show(found) {
    element("stacks").hidden = !found.stacks.length;
    put("stacks", found.stacks.join("\n\n"));
    put("stacks-note", [found.stacks.length ? `as of ${clockText(found.time, true)}` : "", found.why].filter(Boolean).join("; "));
  }
}
