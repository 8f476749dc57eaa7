/** What is around the scenes: title, state, switches, panel, keys. */
import {Attention} from "./attention.js";
import {make, say} from "./dom.js";
import {helpDialog} from "./help.js";
import {line} from "./legend.js";
import {sidesOf} from "./model.js";
import {Panel} from "./panel.js";
import {schemeSwitch, useSwitch} from "./settings.js";
import {View} from "./view.js";

const TALLEST = 17; // rem: style/windows.css has it, too
const LEAST = 8; // rem that the panel has to have
const QUIET = 4000; // milliseconds between two things that are read out

export class Frame {
  /**
   * @param {string[]} names of the nodes that are shown, one for each view
   * @param {(pod: object) => Promise<string[]|null>} explain
   * @param {import("./timeline.js").Timeline|null} timeline
   */
  constructor(names, explain, timeline) {
    this.attention = new Attention();
    this.timeline = timeline;
    this.panel = new Panel(this.attention, explain);
    this.views = names.map((name, number) => new View(name, this.attention, number, names.length === 1));
    this.title = make("h1", {});
    this.subtitle = make("p", {class: "subtitle"});
    this.state = make("p", {class: "state", role: "status", hidden: true});
    this.problem = make("p", {class: "problem", role: "alert", hidden: true});
    this.use = useSwitch();
    this.use.hidden = true; // until somebody tells how busy CPUs are
    this.untold = make("p", {class: "nothing"}, "Nothing is known of this node yet.");
    this.help = helpDialog(timeline !== null);
    this.spoken = make("div", {class: "spoken", role: "log", "aria-live": "polite", "aria-label": "Changes"});
    this.differs = null; // what differs between two views, where they are compared
    this.waiting = [];
    this.revealed = null; // the pod whose row was brought into sight
    this.build(names.length);
    this.attention.listeners.push((target) => this.show(target));
    for (const kind of ["pointerover", "focusin"])
      document.addEventListener(kind, (event) => this.stepAside(event));
    document.addEventListener("keydown", (event) => this.pressed(event));
    const fit = () => this.views.forEach((view) => view.map.fit());
    window.addEventListener("resize", fit);
    matchMedia("print").addEventListener("change", fit); // paper has a width of its own
    this.show(null);
  }

  build(count) {
    const help = make(
      "button",
      {
        type: "button",
        class: "icon",
        "aria-label": "Keys",
        title: "Keys (?)",
        onclick: () => this.help.showModal(),
      },
      "?",
    );
    const header = make(
      "header",
      {class: "top"},
      make("div", {class: "names"}, this.title, this.subtitle),
      make("div", {class: "controls"}, this.state, this.use, schemeSwitch(), help),
    );
    this.lists = make("div", {class: "lists"});
    this.side = make(
      "aside",
      {class: "side", hidden: true, "aria-label": "Who, why, and the pods"},
      this.panel.element,
      this.lists,
    );
    this.maps = make("div", {class: "maps", hidden: true});
    this.main = make("main", {}, this.untold, this.maps);
    for (const view of this.views) {
      this.maps.append(
        count === 1 ? view.element : make("div", {class: "column"}, view.element, view.pods.element),
      );
    }
    if (count === 1) this.lists.append(this.views[0].pods.element);
    document.body.classList.add(count === 1 ? "single" : "several");
    document.body.replaceChildren(
      header,
      this.problem,
      ...(this.timeline ? [this.timeline.element] : []),
      this.main,
      this.side,
      make(
        "p",
        {id: "keys-of-maps", hidden: true},
        "Arrow keys walk over the CPUs, Enter pins one, Escape releases it.",
      ),
      make(
        "p",
        {id: "keys-of-time", hidden: true},
        "Arrow keys go to what happened before or next, End to now.",
      ),
      this.spoken,
      this.help,
    );
  }

  /** Makes room for what is known now: before the first scene, frames would be empty. */
  known() {
    this.untold.hidden = true;
    this.maps.hidden = this.side.hidden = false;
  }

  /** Says what page this is. */
  name(title, subtitle) {
    say(this.title, title);
    line(this.subtitle, subtitle);
    const wanted = `${title} · Pinfold`;
    if (document.title !== wanted) document.title = wanted;
  }

  /** Puts what differs between two views above them. */
  compare(differs) {
    this.differs = differs;
    this.main.prepend(differs);
  }

  /**
   * Where the panel lies over the maps, it leaves what is pointed at in sight: it is at the lower end of the window, or
   * above that, below what differs.
   */
  stepAside(event) {
    if (this.views.length === 1 || this.attention.pinned || this.side.contains(event.target)) return;
    const at = event.target.closest?.(".cell, .pod-head");
    const box = at?.getBoundingClientRect() ?? {top: event.clientY, bottom: event.clientY};
    if (box.top === undefined) return; // the focus is on something else
    const rem = Number.parseFloat(getComputedStyle(document.documentElement).fontSize);
    const tall = Math.min(0.45 * window.innerHeight, TALLEST * rem) + rem;
    const above = box.bottom > window.innerHeight - tall;
    const differs = Math.max(0, this.differs?.getBoundingClientRect().bottom ?? 0);
    const top = box.top - differs < LEAST * rem ? 0 : differs;
    this.side.classList.toggle("above", above);
    this.side.style.setProperty("--top", `${top}px`);
    this.side.style.setProperty("--room", above ? `${Math.max(0, box.top - top - rem)}px` : "100vh");
  }

  /** Lights and tells what is pointed at. */
  show(target) {
    for (const view of this.views) if (view.index) view.light(target);
    const view = this.views[target?.scene ?? 0];
    if (!view?.index) return;
    this.panel.draw(target, view.index, this.differs ? sidesOf(target, this.views) : null);
    const {pinned} = this.attention;
    const revealed = pinned?.cpu !== undefined && this.views.length === 1 ? pinned.pod : null;
    // Once: who scrolls on afterwards is not brought back by what changes.
    if (revealed && revealed !== this.revealed) view.pods.reveal(revealed);
    this.revealed = revealed;
  }

  /** What is pointed at may be another's by now. */
  refresh() {
    const {pinned} = this.attention;
    const view = this.views[pinned?.scene ?? 0];
    if (pinned?.cpu !== undefined) this.attention.pinned = view.map.target(pinned.cpu);
    this.attention.tell(true);
  }

  /**
   * The state of what is shown, such as `live`.
   * @param {string} kind a class
   * @param {string} words
   */
  tellState(kind, words) {
    this.state.hidden = false;
    this.state.className = `state ${kind}`;
    say(this.state, words);
  }

  /** Reads out what has changed, a few seconds apart. */
  speak(words) {
    this.waiting.push(...words);
    if (this.timer || !this.waiting.length) return;
    this.timer = setTimeout(
      () => {
        this.timer = 0;
        const told = this.waiting.splice(0);
        const text =
          told.length > 4
            ? `${told.slice(0, 4).join("; ")}; and ${told.length - 4} more changes`
            : told.join("; ");
        this.spoken.replaceChildren(make("p", {}, text));
      },
      this.spoken.childElementCount ? QUIET : 300,
    );
  }

  pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || this.help.open) return;
    const typing = event.target.matches?.("input[type=search], select");
    if (event.key === "Escape") {
      const filter = this.views
        .map((view) => view.pods.filter)
        .find((one) => one === event.target || one.value);
      if (event.target.matches?.("input[type=search]") && !event.target.value) event.target.blur();
      else if (this.attention.release()) return;
      else if (filter?.value) {
        filter.value = "";
        filter.dispatchEvent(new Event("input"));
      } else if (!this.timeline?.fold()) this.timeline?.choose(null);
      return;
    }
    if (typing) return;
    const act = {
      "/": () => this.views[0].pods.filter.focus(),
      "?": () => this.help.showModal(),
      n: () => this.timeline?.choose(null),
      u: () => this.use.hidden || this.use.click(),
      "[": () => this.timeline?.move(-1),
      "]": () => this.timeline?.move(1),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }
}
