/** The past: a slider with a tick wherever something happened, and what happened in words. */
import {counted, Keyed, make, mark, putInOrder, say} from "./dom.js";

const SPANS = [
  ["the last 15 minutes", 900],
  ["the last hour", 3600],
  ["the last 6 hours", 21600],
  ["the last day", 86400],
  ["the last week", 604800],
  ["all that is known", Infinity],
];
const NEAR = 0.008; // of the slider: so near to a tick, it is the tick
const LISTED = 200;

export class Timeline {
  /** @param {(at: number|null) => void} go to a moment in seconds since the epoch; null is now */
  constructor(go) {
    this.go = go;
    this.entries = []; // the oldest first
    this.at = null;
    this.away = false; // whether the newest that is known may be over
    this.kept = new Keyed();
    this.rows = new Keyed();
    this.slider = make("input", {
      type: "range",
      min: 0,
      max: 1,
      step: "any",
      value: 1,
      "aria-label": "Moment",
      "aria-describedby": "keys-of-time",
    });
    this.ticks = make("div", {class: "ticks", "aria-hidden": "true"});
    this.words = make("output", {class: "moment"});
    this.span = make(
      "select",
      {"aria-label": "How far back", onchange: () => this.draw()},
      ...SPANS.map(([name]) => make("option", {}, name)),
    );
    this.back = make(
      "button",
      {type: "button", class: "to-now", hidden: true, onclick: () => this.choose(null)},
      "Back to now",
    );
    this.earlier = this.step("The event before", "‹", -1);
    this.later = this.step("The event after", "›", 1);
    this.list = make("ol", {class: "entries", "aria-label": "What happened, the newest first"});
    this.list.hidden = true;
    this.toggle = make(
      "button",
      {type: "button", class: "history", "aria-expanded": "false", onclick: () => this.unfold()},
      "What happened",
    );
    this.element = make(
      "section",
      {class: "timeline", "aria-label": "Time", hidden: true},
      make(
        "div",
        {class: "time-bar"},
        this.earlier,
        make("div", {class: "track"}, this.ticks, this.slider),
        this.later,
      ),
      // Below it: whatever is told of a moment, the track stays where it is under a pointer that drags.
      make(
        "div",
        {class: "time-told"},
        make("div", {class: "time-at"}, this.words, this.back),
        make("div", {class: "time-of"}, this.span, this.toggle),
      ),
      this.list,
    );
    this.chosen = false;
    this.span.addEventListener("change", () => (this.chosen = true));
    this.listen();
    setInterval(() => this.draw(), 15000);
  }

  step(label, sign, by) {
    return make(
      "button",
      {type: "button", class: "step", "aria-label": label, title: label, onclick: () => this.move(by)},
      sign,
    );
  }

  listen() {
    this.slider.addEventListener("input", () => {
      const share = Number(this.slider.value);
      this.choose(share > 1 - NEAR / 2 ? null : this.nearTick(share));
    });
    this.slider.addEventListener("keydown", (event) => {
      const by = {ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10}[
        event.key
      ];
      if (by) this.move(by);
      else if (event.key === "Home" && this.entries.length) this.choose(this.entries[0].at);
      else if (event.key === "End") this.choose(null);
      else return;
      event.preventDefault();
    });
    this.list.addEventListener("click", (event) => {
      const row = event.target.closest("[data-at]");
      if (row) this.choose(Number(row.dataset.at));
    });
  }

  unfold() {
    this.list.hidden = !this.list.hidden;
    this.toggle.setAttribute("aria-expanded", String(!this.list.hidden));
    this.drawList();
  }

  /** Folds the list of what happened; whether it was unfolded. */
  fold() {
    if (this.list.hidden) return false;
    this.unfold();
    return true;
  }

  /** @param {object[]} entries of the history, the newest first, which may be known already */
  add(entries) {
    const known = new Map(this.entries.map((one) => [one.number, one]));
    for (const one of entries) known.set(one.number, one);
    this.entries = [...known.values()].sort((one, other) => one.number - other.number).slice(-2000);
    if (!this.chosen) this.span.selectedIndex = this.fitting();
    this.draw();
    this.drawList();
  }

  /** The shortest span that has enough to see. */
  fitting() {
    const now = Date.now() / 1000;
    const enough = Math.min(this.entries.length, 25);
    return SPANS.findIndex(
      ([, seconds]) => this.entries.filter((one) => one.at >= now - seconds).length >= enough,
    );
  }

  get limits() {
    const now = Date.now() / 1000;
    const [, seconds] = SPANS[this.span.selectedIndex] ?? SPANS.at(-1);
    const oldest = this.entries[0]?.at ?? now - 900;
    return [Number.isFinite(seconds) ? now - seconds : Math.min(oldest, now - 60), now];
  }

  nearTick(share) {
    const [first, last] = this.limits;
    const at = first + share * (last - first);
    const near = this.entries.filter((one) => Math.abs(one.at - at) < NEAR * (last - first));
    return near.length
      ? near.reduce((one, other) => (Math.abs(other.at - at) < Math.abs(one.at - at) ? other : one)).at
      : at;
  }

  /** Goes some entries on, or back. */
  move(by) {
    const moments = [...new Set(this.entries.map((one) => one.at))];
    const here = this.at ?? Infinity;
    const before = moments.filter((at) => at < here);
    const after = moments.filter((at) => at > here);
    if (by < 0 && before.length) this.choose(before[Math.max(0, before.length + by)]);
    if (by > 0 && this.at !== null) this.choose(after.length >= by ? after[by - 1] : null);
  }

  /** @param {number|null} at */
  choose(at) {
    if (at === this.at) return;
    this.at = at;
    this.draw();
    this.go(at);
  }

  draw() {
    this.element.hidden = !this.entries.length;
    if (this.element.hidden) return;
    const [first, last] = this.limits;
    const share = this.at === null ? 1 : (this.at - first) / (last - first);
    this.slider.value = Math.max(0, Math.min(1, share));
    const told = this.told();
    mark(this.slider, "aria-valuetext", this.at === null ? told.toLowerCase() : told);
    say(this.words, told);
    this.back.hidden = this.at === null;
    const seen = new Map();
    for (const one of this.entries) {
      const place = Math.round(((one.at - first) / (last - first)) * 400) / 400;
      if (place >= 0 && place <= 1)
        seen.set(place, one.kind === "rejected" || seen.get(place) === "rejected" ? "rejected" : one.kind);
    }
    const ticks = [...seen].map(([place, kind]) => ({place, bad: kind === "rejected"}));
    putInOrder(
      this.ticks,
      this.kept.elements(
        ticks,
        (one) => String(one.place),
        (one) => {
          const tick = make("span", {class: one.bad ? "tick bad" : "tick"});
          tick.style.left = `${one.place * 100}%`;
          return tick;
        },
      ).elements,
    );
    for (const row of this.list.children)
      row.classList.toggle("here", Number(row.firstElementChild.dataset.at) === this.at);
  }

  drawList() {
    if (this.list.hidden) return;
    const newest = this.entries.slice(-LISTED).reverse();
    putInOrder(this.list, this.rows.elements(newest, (one) => String(one.number), entryRow).elements);
    this.draw();
  }

  /** Whether the node tells nothing any more: what was told last is not now. */
  tellAway(away) {
    if (away === this.away) return;
    this.away = away;
    this.draw();
  }

  told() {
    if (this.at === null) return this.away ? "Last known" : "Now";
    return `${clock(this.at)}, ${ago(Date.now() / 1000 - this.at)} ago`;
  }
}

function entryRow(entry) {
  return make(
    "li",
    {class: entry.kind === "rejected" ? "entry bad" : "entry"},
    make(
      "button",
      {type: "button", "data-at": entry.at},
      make("time", {}, clock(entry.at)),
      make("span", {class: "kind"}, entry.kind),
      make("span", {class: "who"}, entry.pod ?? "node"),
      make("span", {class: "words"}, entry.words ?? ""),
    ),
  );
}

/** The time of day, with the date where that is another one. */
export function clock(at) {
  const date = new Date(at * 1000);
  const time = date.toLocaleTimeString([], {hour12: false});
  return date.toDateString() === new Date().toDateString() ? time : `${date.toLocaleDateString()} ${time}`;
}

function ago(seconds) {
  for (const [unit, size] of [
    ["day", 86400],
    ["hour", 3600],
    ["minute", 60],
  ]) {
    if (seconds >= size * 1.5) return counted(Math.round(seconds / size), unit);
  }
  return counted(Math.max(0, Math.round(seconds)), "second");
}
