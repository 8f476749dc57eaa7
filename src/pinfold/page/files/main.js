/** Where the page begins: with what is in it, or with what a server tells. */
import {make} from "./dom.js";
import {Frame} from "./frame.js";
import {ask, explainer, listen} from "./live.js";
import {changesBetween} from "./model.js";
import {clock, Timeline} from "./timeline.js";

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
  frame.use.hidden = true;
  if (alone && only.at) frame.tellState("still", `as it was at ${clock(only.at)}`);
  page.scenes.forEach((scene, at) => frame.views[at].draw(scene, false));
  const changes = page.changes ?? [];
  if (page.changes) {
    const told = changes.length
      ? make("ul", {}, ...changes.map((one) => make("li", {}, one)))
      : make("p", {}, "Nothing differs.");
    frame.main.prepend(
      make("section", {class: "changes", "aria-label": "What differs"}, make("h2", {}, "What differs"), told),
    );
  }
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

/** Follows a node. */
class Live {
  constructor() {
    this.newest = null; // the scene of now, with its root
    this.root = null;
    this.at = null; // the moment that is shown; null is now
    this.away = "";
    this.connection = "connecting";
    this.asked = 0;
    this.wholeHistory = false;
    this.scenes = new Map();
    this.timeline = new Timeline((at) => this.go(at));
    this.frame = new Frame(["this node"], explainer(), this.timeline);
    this.frame.name("Pinfold", "");
    this.state();
    const drawn = (text) => this.hear(text);
    listen(
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

  /** Draws what an event tells; how long it took is told to those who measure the page. */
  hear(text) {
    const started = performance.now();
    const event = JSON.parse(text);
    this.away = "";
    const {scene} = event;
    if (!scene) return;
    this.root = scene.root ?? this.root;
    this.newest = {...scene, root: this.root};
    if (this.at === null) this.draw(this.newest, event.kind === "changed");
    this.state();
    performance.measure("pinfold-event", {start: started, detail: event.kind});
    clearTimeout(this.later);
    this.later = setTimeout(() => this.history(100), this.timeline.entries.length ? 400 : 50);
  }

  draw(scene, flash) {
    const {frame} = this;
    const [view] = frame.views;
    const before = view.index;
    frame.name(scene.title, scene.subtitle);
    view.draw(scene, flash);
    frame.refresh();
    if (flash && before) frame.speak(changesBetween(before, view.index));
  }

  observe(text) {
    const started = performance.now();
    const {observed} = JSON.parse(text);
    this.away = "";
    this.frame.panel.observe(observed);
    this.idle = observed.idle;
    if (this.at === null) this.frame.views[0].map.use(observed.idle);
    this.state();
    performance.measure("pinfold-event", {start: started, detail: "observed"});
  }

  state() {
    const {frame} = this;
    const problem =
      {refused: "This page is not let in any more: open the address that pinfold serve tells."}[
        this.connection
      ] ?? this.away;
    frame.problem.hidden = !problem;
    if (frame.problem.textContent !== problem) frame.problem.textContent = problem;
    document.body.classList.toggle("past", this.at !== null);
    document.body.classList.toggle("stale", Boolean(this.away) || this.connection === "reconnecting");
    if (this.at !== null) frame.tellState("past", `as it was at ${clock(this.at)}`);
    else if (this.connection === "refused") frame.tellState("away", "not let in");
    else if (this.connection === "reconnecting") frame.tellState("away", "connecting again");
    else if (this.away) frame.tellState("away", "agent away");
    else if (this.newest) frame.tellState("live", "live");
    else frame.tellState("", "connecting");
  }

  /** Shows a moment of the past, or now. */
  async go(at) {
    this.at = at;
    this.state();
    const asked = ++this.asked;
    if (at !== null && !this.wholeHistory) {
      // Whoever looks back once looks further, too.
      this.wholeHistory = true;
      this.history(1000);
    }
    const {map} = this.frame.views[0];
    if (at === null) {
      if (this.newest) this.draw(this.newest, false);
      map.use(this.idle ?? null);
      return;
    }
    try {
      const scene = this.scenes.get(at) ?? (await ask(`/v1/scene?at=${at}`));
      if (asked !== this.asked) return;
      if (this.scenes.size > 100) this.scenes.clear();
      this.scenes.set(at, scene);
      this.draw({root: this.root, ...scene}, false);
      map.use(null);
      this.state();
    } catch (error) {
      if (asked !== this.asked) return;
      this.frame.tellState("away", `not to be had: ${error.message}`);
    }
  }

  /** Reads what has happened; what is missing between is read, too. */
  async history(limit) {
    try {
      const {entries} = await ask(`/v1/history?limit=${limit}`);
      const known = this.timeline.entries.at(-1)?.number ?? Infinity;
      const gap = limit < 1000 && entries.length === limit && entries.at(-1).number > known + 1;
      if (gap) await this.history(1000);
      else this.timeline.add(entries);
    } catch {
      // The stream says what is wrong; the history is asked for again with the next event.
    }
  }
}

const told = document.getElementById("page");
if (told) showPage(JSON.parse(told.textContent));
else new Live();
