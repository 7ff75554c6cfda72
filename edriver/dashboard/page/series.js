"use strict";
// The samples of one run as curves draw them. Pure: nothing here looks at the page.

const AXES = {wall: "time", elapsed: "time since the start", steps: "steps", samples: "samples"};
const OWN = {"own:step_rate": "steps per second", "own:sample_rate": "samples per second", "own:size": "workers"};

function nameOf(key) {
  return OWN[key] || key.slice(key.indexOf(":") + 1);
}

// The first place whose number is above a value; numbers never fall.
function placeAbove(numbers, value) {
  let [low, high] = [0, numbers.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] > value) high = middle;
    else low = middle + 1;
  }
  return low;
}

// What stands at `value` among `from`, which never falls, read off in `to`; between two it is in proportion.
function interpolated(from, to, value) {
  if (!from.length) return null;
  const next = placeAbove(from, value);
  if (next === 0) return to[0];
  if (next === from.length) return to[next - 1];
  const share = (value - from[next - 1]) / (from[next] - from[next - 1] || 1);
  return to[next - 1] + share * (to[next] - to[next - 1]);
}

// TensorBoard's: s = w s + (1 - w) y from 0 on, divided by 1 - w^n, so that the first values count in full. What is no
// number is passed over.
function smoothed(values, weight) {
  if (!weight) return values;
  let [last, count] = [0, 0];
  return values.map((value) => {
    if (value === null || value === undefined) return value;
    last = weight * last + (1 - weight) * value;
    count += 1;
    return last / (1 - weight ** count);
  });
}

// The places that are drawn of a curve, so many at most: of each stretch the lowest and the highest value, so that no
// peak is lost, and a value that is missing.
function drawnPlaces(xs, ys, [from, to], most) {
  const first = Math.max(0, placeAbove(xs, from) - 1);
  const last = Math.min(xs.length, placeAbove(xs, to) + 1);
  const places = [];
  const width = Math.max(1, Math.ceil((2 * (last - first)) / most));
  for (let begin = first; begin < last; begin += width) {
    const end = Math.min(last, begin + width);
    let [low, high, gap] = [-1, -1, -1];
    for (let place = begin; place < end; place += 1) {
      if (ys[place] === null || ys[place] === undefined) gap = place;
      else {
        if (low < 0 || ys[place] < ys[low]) low = place;
        if (high < 0 || ys[place] > ys[high]) high = place;
      }
    }
    places.push(...[...new Set([begin === first ? first : -1, low, high, gap, end === last ? last - 1 : -1])].filter((place) => place >= 0).sort((a, b) => a - b));
  }
  return places;
}

class Series {
  // `story` is the run's, `label` what it is called beside others.
  constructor(story, label) {
    this.story = story;
    this.label = label;
    this.version = -1;
    this.axes = new Map();
  }

  // To be called after the story has changed.
  refresh() {
    const points = this.story.points;
    if (this.version === this.story.version) return;
    this.version = this.story.version;
    this.axes.clear();
    this.times = points.map((point) => point[0]);
    // Each call of `run` starts its count again.
    const begins = [...this.story.rounds.values()].filter((round) => round.kind === "start").map((round) => round.assigned);
    this.starts = begins.length;
    this.stops = [...this.story.interruptions].sort((a, b) => a.start + a.seconds - b.start - b.seconds);
    this.stopEnds = this.stops.map((each) => each.start + each.seconds);
    this.begins = begins.length > 1 ? begins[begins.length - 1] : -Infinity;
    this.undone = new Uint8Array(points.length);
    for (const [first, end] of this.story.undone) this.undone.fill(1, first, end);
    this.kept = points.filter((_, place) => !this.undone[place]);
    const names = new Set();
    for (const point of points) for (const name in point[3]) names.add(name);
    this.keys = [...[...names].sort((a, b) => /loss/i.test(b) - /loss/i.test(a)).map((name) => `reported:${name}`), "own:step_rate", ...(points.some((point) => point[5]) ? ["own:sample_rate"] : []), "own:size"];
    this.countsSamples = points.some((point) => point[4] !== null);
  }

  value(point, key) {
    if (key === "own:step_rate") return point[2];
    if (key === "own:sample_rate") return point[5];
    const name = nameOf(key);
    return Object.hasOwn(point[3], name) ? point[3][name] : undefined;
  }

  position(point, axis) {
    if (axis === "steps") return point[1];
    if (axis === "samples") return point[4];
    return axis === "wall" ? point[0] : point[0] - this.story.head.began;
  }

  // The kept samples that have a place on an axis, and the places, which never fall.
  along(axis) {
    if (!this.axes.has(axis)) {
      const [points, xs] = [[], []];
      const counted = axis === "steps" || axis === "samples"; // each `run` of a script starts its count again: the last one's
      for (const point of counted ? this.kept.filter((each) => each[0] >= this.begins && this.position(each, axis) !== null) : this.kept) {
        const x = this.position(point, axis);
        if (xs.length && x < xs[xs.length - 1]) continue;
        points.push(point);
        xs.push(x);
      }
      this.axes.set(axis, {points, xs, times: points.map((point) => point[0])});
    }
    return this.axes.get(axis);
  }

  // A curve: places on the axis, and values; null is no number, undefined a gap. A name that a sample does not have is left
  // out, and so is a value that is still the one of the step before.
  curve(key, axis, weight) {
    const cached = `${key} ${axis} ${weight}`;
    if (this.axes.has(cached)) return this.axes.get(cached);
    const [xs, raw] = key === "own:size" ? this.sizes(axis) : [[], []];
    if (key !== "own:size") {
      const along = this.along(axis);
      const reported = key.startsWith("reported:");
      let last = null; // the place of the sample before
      along.points.forEach((point, place) => {
        const value = this.value(point, key);
        if (value === undefined) return;
        if (reported && last !== null) {
          const before = along.points[last];
          if (point[1] === before[1] && value === raw[raw.length - 1]) return; // no step since: nothing was reported
          if (this.stoodStill(axis, before[0], point[0])) {
            xs.push((along.xs[last] + along.xs[place]) / 2);
            raw.push(undefined);
          }
        }
        last = place;
        xs.push(along.xs[place]);
        raw.push(value);
      });
    }
    if (this.axes.size > 100) this.axes.clear(); // a slider has many places
    const found = {xs, raw, ys: key === "own:size" ? raw : smoothed(raw, weight)};
    this.axes.set(cached, found);
    return found;
  }

  // Whether a curve over time has a gap between two samples: training stood still for most of it.
  stoodStill(axis, from, to) {
    if (axis !== "wall" && axis !== "elapsed") return false;
    let stood = 0;
    for (let at = placeAbove(this.stopEnds, from); at < this.stopEnds.length && this.stops[at].start < to; at += 1) {
      stood += Math.min(to, this.stopEnds[at]) - Math.max(from, this.stops[at].start);
    }
    return stood > (to - from) / 2;
  }

  // The stretches of a curve that were undone, with a gap after each.
  undoneCurve(key, axis) {
    const [xs, ys] = [[], []];
    if (key === "own:size") return [xs, ys];
    this.story.points.forEach((point, place) => {
      const value = this.value(point, key);
      const x = this.position(point, axis);
      if (!this.undone[place] || value === undefined || x === null || ((axis === "steps" || axis === "samples") && point[0] < this.begins)) return;
      if (place && !this.undone[place - 1]) [xs.push(x), ys.push(null)];
      xs.push(x);
      ys.push(value);
    });
    return [xs, ys];
  }

  // The number of workers: what holds from each place on.
  sizes(axis) {
    const [xs, ys] = [[], []];
    const step = (time, size) => {
      const x = this.at(time, axis);
      if (x === null) return;
      xs.push(xs.length ? Math.max(x, xs[xs.length - 1]) : x);
      ys.push(size);
    };
    let before = null;
    const gap = (this.story.now() - this.story.head.began) / 500; // shorter breaks stand among the interruptions
    for (const round of this.story.rounds.values()) {
      if (before && before.ended !== null && round.assigned - before.ended > gap) step(before.ended, 0);
      step(round.assigned, round.size);
      before = round;
    }
    if (before && before.ended !== null) step(before.ended, 0);
    if (before) step(this.story.now(), before.ended === null ? before.size : 0);
    return [xs, ys];
  }

  // Where a time is on an axis; null: nowhere.
  at(time, axis) {
    if (axis === "wall") return time;
    if (axis === "elapsed") return time - this.story.head.began;
    const along = this.along(axis);
    return interpolated(along.times, along.xs, time);
  }

  // The time at a place on an axis; null: none.
  timeAt(x, axis) {
    if (axis === "wall") return x;
    if (axis === "elapsed") return x + this.story.head.began;
    const along = this.along(axis);
    return interpolated(along.xs, along.times, x);
  }

  // All that the axis has of the run, from where to where; null: nothing.
  extent(axis) {
    if (axis === "wall") return [this.story.head.began, this.story.now()];
    if (axis === "elapsed") return [0, this.story.now() - this.story.head.began];
    const {xs} = this.along(axis);
    return xs.length ? [xs[0], xs[xs.length - 1]] : null;
  }

  // The value of a curve at a place: the last one up to there; undefined: there is none yet.
  valueAt(key, axis, weight, x) {
    const {xs, ys} = this.curve(key, axis, weight);
    const place = placeAbove(xs, x) - 1;
    return place < 0 ? undefined : ys[place];
  }

  // The round that is on at a time; null: none.
  roundAt(time) {
    let found = null;
    for (const round of this.story.rounds.values()) {
      if (round.assigned > time) break;
      found = round;
    }
    return found && (found.ended === null || found.ended >= time) ? found : null;
  }

  interruptionAt(time) {
    return this.story.interruptions.findLast((each) => each.start <= time && time <= each.start + each.seconds) || null;
  }

  // All samples, undone ones too, as rows of a table: what is downloaded.
  rows() {
    const names = this.keys.filter((key) => !key.startsWith("own:"));
    return this.story.points.map((point, place) => ({
      run: this.story.head.run_id || this.label,
      time: new Date(point[0] * 1000).toISOString(),
      seconds: point[0] - this.story.head.began,
      step: point[1],
      samples: point[4],
      undone: this.undone[place],
      workers: (this.roundAt(point[0]) || {size: 0}).size,
      steps_per_second: point[2],
      samples_per_second: point[5],
      values: Object.fromEntries(names.map((key) => [nameOf(key), this.value(point, key)]).filter(([, value]) => value !== undefined)),
    }));
  }
}
