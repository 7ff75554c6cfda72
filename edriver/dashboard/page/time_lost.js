"use strict";
// How much time was lost in the part of time that is shown, and to what; and a way to show one day.

class TimeLost {
  start() {
    this.day = Object.assign(document.createElement("input"), {type: "date", id: "day"});
    const label = document.createElement("label");
    label.append("day ", this.day);
    element("span").parentElement.after(label);
    this.note = Object.assign(document.createElement("p"), {className: "note", id: "time-lost"});
    element("world").before(this.note);
    this.day.addEventListener("input", () => {
      if (!this.day.value) return zoomTo(null);
      const [year, month, day] = this.day.value.split("-").map(Number);
      const [begin, end] = [0, 1].map((more) => new Date(year, month - 1, day + more).getTime() / 1000);
      return zoomTo([Math.max(begin, story.head.began), Math.max(begin + 1, Math.min(end, story.now()))]);
    });
  }

  draw(story) {
    if (!story.head) return;
    const [from, to] = range();
    if (!view.zoom) this.day.value = "";
    [this.day.min, this.day.max] = [story.head.began, story.now()].map((time) => clockText(time, true).slice(0, 10));
    const within = (each) => Math.min(to, each.start + each.seconds) - Math.max(from, each.start);
    const lost = new Map();
    let [total, count, steps] = [0, 0, 0];
    for (const each of story.interruptions) {
      const seconds = within(each);
      if (seconds <= 0) continue;
      [total, count, steps] = [total + seconds, count + 1, steps + each.lost];
      lost.set(each.kind, (lost.get(each.kind) || 0) + seconds);
    }
    const kinds = [...lost].sort((a, b) => b[1] - a[1]).map(([kind, seconds]) => `${kind} ${shortText(seconds)}`).join(", ");
    const share = `${(100 * total / Math.max(1e-9, to - from)).toFixed(1)} %`;
    const oneDay = clockText(from, true).slice(0, 10) === clockText(to, true).slice(0, 10);
    put("time-lost", `${clockText(from, true)} to ${clockText(to, !oneDay)}: ${count ? `${shortText(total)} without a step (${share}), in ${countText(count, "interruption")}: ${kinds}${steps ? `; ${countText(steps, "step")} made again` : ""}` : "no interruption"}`);
  }
}

const timeLost = new TimeLost();
