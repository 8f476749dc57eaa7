/** Where the page begins: with what is in it, or with what a server tells. */
import {make} from "./dom.js";
import {Frame} from "./frame.js";
import {ask, explainer, oneAtATime, Stream} from "./live.js";
import {changesBetween} from "./model.js";
import {clock, Timeline} from "./timeline.js";

const MEASURE = "pinfold-event";
const FIRST = 8; // so many differences are read before the maps
const PAUSE = 400; // milliseconds between an event and the reading of what has happened
const FIRST_PAUSE = 50;
const MEASURED = 500; // so many measures are kept: a browser keeps them all until it is told not to

/** Shows a ScenePage that is in the page itself. */
function showPage(page) {
  const frame = new Frame(
    page.scenes.map((scene) => scene.title),
    async () => null,
    null,
  );
  const [only] = page.scenes;
  const alone = page.scenes.length === 1;
  frame.name(page.title, alone ? only.subtitle : "");
  if (alone && only.at) frame.tellState("still", `as it was at ${clock(only.at)}`);
  frame.known();
  page.scenes.forEach((scene, at) => frame.views[at].draw(scene, false));
  if (page.changes) frame.compare(differences(page.changes));
  for (const [heading, text] of Object.entries(page.details ?? {})) {
    frame.main.append(
      make(
        "details",
        {class: "detail"},
        make("summary", {}, heading),
        make("pre", {tabindex: 0, "aria-label": heading}, text),
      ),
    );
  }
  frame.refresh();
}

/** What differs: the first lines, so that the maps stay in sight, and the others when they are asked for. */
function differences(changes) {
  const list = (lines) => make("ul", {}, ...lines.map((one) => make("li", {}, one)));
  const rest = changes.length > FIRST + 1 ? changes.slice(FIRST) : [];
  return make(
    "section",
    {class: "changes", "aria-label": "What differs"},
    make("h2", {}, "What differs"),
    changes.length ? list(changes.slice(0, changes.length - rest.length)) : make("p", {}, "Nothing differs."),
    rest.length
      ? make("details", {class: "detail"}, make("summary", {}, `${rest.length} more`), list(rest))
      : null,
  );
}

/** Follows a node. */
class Live {
  constructor() {
    this.newest = null; // the scene of now, with its root
    this.root = null;
    this.at = null; // the moment that is asked for; null is now
    this.shown = null; // the moment that is drawn, which is another one until the answer has come
    this.missing = ""; // why the moment that is asked for is not drawn
    this.away = "";
    this.observed = null; // the newest Observation
    this.connection = "connecting";
    this.wholeHistory = null; // the reading of all that is remembered, once somebody looks back
    this.scenes = new Map();
    this.seek = oneAtATime((at) => this.fetchMoment(at));
    this.follow = oneAtATime(() => this.newEntries());
    this.timeline = new Timeline((at) => this.go(at));
    this.frame = new Frame(["this node"], explainer(), this.timeline);
    this.frame.name("Pinfold", "");
    this.state();
    const drawn = (text) => this.hear(text);
    new Stream(
      {
        whole: drawn,
        changed: drawn,
        observed: (text) => this.observe(text),
        away: (text) => {
          this.away = JSON.parse(text).problem ?? "The agent does not answer.";
          this.state();
        },
      },
      (state) => {
        this.connection = state;
        this.state();
      },
    );
  }

  /** Draws what an event tells. */
  hear(text) {
    const started = performance.now();
    const event = JSON.parse(text);
    this.away = "";
    const {scene} = event;
    if (!scene) return;
    this.root = scene.root ?? this.root;
    this.newest = {...scene, root: this.root};
    if (this.shown === null) this.draw(this.newest, event.kind === "changed");
    this.state();
    measured(started, event.kind);
    this.follow();
  }

  draw(scene, flash) {
    const {frame} = this;
    const [view] = frame.views;
    const before = view.index;
    frame.known();
    frame.name(scene.title, scene.subtitle);
    view.draw(scene, flash);
    frame.refresh();
    if (flash && before) frame.speak(changesBetween(before, view.index));
  }

  observe(text) {
    const started = performance.now();
    const {observed} = JSON.parse(text);
    this.away = "";
    this.observed = observed;
    if (Object.keys(observed.idle ?? {}).length) this.frame.use.hidden = false;
    this.use();
    this.state();
    measured(started, "observed");
  }

  /** Shows how busy everything is; of the past nobody knows. */
  use() {
    const observed = this.shown === null ? this.observed : null;
    this.frame.panel.observe(observed);
    this.frame.views[0].map.use(observed?.idle ?? null);
  }

  state() {
    const {frame} = this;
    const problem =
      {refused: "This page is not let in any more: open the address that pinfold serve tells."}[
        this.connection
      ] ?? this.away;
    frame.problem.hidden = !problem;
    if (frame.problem.textContent !== problem) frame.problem.textContent = problem;
    document.body.classList.toggle("past", this.shown !== null);
    const stale = Boolean(this.away) || ["reconnecting", "refused"].includes(this.connection);
    document.body.classList.toggle("stale", stale);
    this.timeline.tellAway(stale);
    const shown = this.shown === null ? "" : clock(this.shown);
    if (this.missing) {
      frame.tellState(
        "away",
        `${clock(this.at)} is not to be had: ${this.missing}; this is ${shown || "now"}`,
      );
    } else if (shown) frame.tellState("past", `as it was at ${shown}`);
    else if (this.connection === "refused") frame.tellState("away", "not let in");
    else if (this.connection === "reconnecting") frame.tellState("away", "connecting again");
    else if (this.away) frame.tellState("away", "agent away");
    else if (this.newest && this.connection === "connected") frame.tellState("live", "live");
    else frame.tellState("", "connecting");
  }

  /** Shows a moment of the past, or now. */
  go(at) {
    this.at = at;
    this.missing = "";
    if (at === null) this.shown = null;
    this.state();
    if (at === null) {
      if (this.newest) this.draw(this.newest, false);
      this.use();
      return;
    }
    // Whoever looks back once looks further, too.
    this.wholeHistory ??= this.history(1000).then((read) => {
      if (!read) this.wholeHistory = null;
    });
    if (this.scenes.has(at)) this.showMoment(at);
    else this.seek(at);
  }

  /** Asks for a moment, which may be another one than is wanted by the time that it comes. */
  async fetchMoment(at) {
    if (at !== this.at || at === this.shown) return;
    try {
      const scene = await ask(`/v1/scene?at=${at}`);
      if (this.scenes.size > 100) this.scenes.clear();
      this.scenes.set(at, scene);
      if (at === this.at) this.showMoment(at);
    } catch (error) {
      if (at !== this.at) return;
      this.missing = error.message;
      this.state();
    }
  }

  showMoment(at) {
    this.shown = at;
    this.draw({root: this.root, ...this.scenes.get(at)}, false);
    this.use();
    this.state();
  }

  /** What happened just now is read a little later: an event seldom comes alone. */
  async newEntries() {
    await new Promise((go) => setTimeout(go, this.timeline.entries.length ? PAUSE : FIRST_PAUSE));
    await this.history(100);
  }

  /** Reads what has happened; what is missing between is read, too. Whether it was to be had. */
  async history(limit) {
    try {
      const {entries} = await ask(`/v1/history?limit=${limit}`);
      const known = this.timeline.entries.at(-1)?.number ?? Infinity;
      const gap = limit < 1000 && entries.length === limit && entries.at(-1).number > known + 1;
      if (gap) return await this.history(1000);
      this.timeline.add(entries);
      return true;
    } catch {
      return false; // the stream says what is wrong; the newest are asked for again with the next event
    }
  }
}

/** Tells how long an event took to those who measure the page. */
function measured(started, kind) {
  if (performance.getEntriesByName(MEASURE).length >= MEASURED) performance.clearMeasures(MEASURE);
  performance.measure(MEASURE, {start: started, detail: kind});
}

const told = document.getElementById("page");
if (told) showPage(JSON.parse(told.textContent));
else new Live();
