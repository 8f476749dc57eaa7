/** Who has what is pointed at, and why; of what differs between two scenes both sides. */
import {become, make} from "./dom.js";
import {factOf} from "./facts.js";
import {Told, whereIs, whoseIs} from "./told.js";

export class Panel {
  /**
   * @param {import("./attention.js").Attention} attention
   * @param {((pod: object) => Promise<string[]|null>)} explain the lines of `pinfold explain`; null: there are none
   */
  constructor(attention, explain) {
    this.attention = attention;
    this.target = null;
    this.index = null;
    this.sides = null;
    this.head = make("div", {});
    this.columns = [new Told(explain, () => this.tell()), new Told(explain, () => this.tell())];
    this.close = make(
      "button",
      {
        type: "button",
        class: "close",
        "aria-label": "Release what is pinned",
        title: "Release (Escape)",
        onclick: () => attention.release(),
      },
      "×",
    );
    this.element = make(
      "section",
      {class: "panel", "aria-label": "Who and why"},
      this.head,
      make("div", {class: "columns"}, ...this.columns.map((one) => one.element)),
      this.close,
    );
    new ResizeObserver(() => this.measure()).observe(this.element);
  }

  /**
   * Draws what is pointed at; what is told of it already is left alone.
   * @param {object|null} target
   * @param {import("./model.js").SceneIndex} index of the view that it is in
   * @param {import("./model.js").Side[]|null} sides where it differs: what it is in both views
   */
  draw(target, index, sides) {
    this.target = target;
    this.index = index;
    this.sides = sides;
    const pinned = this.attention.pinned !== null;
    this.element.classList.toggle("pinned", pinned);
    this.element.classList.toggle("empty", !target);
    this.element.classList.toggle("both", sides !== null);
    this.close.hidden = !pinned;
    const [first, second] = sides ?? [
      {target, index},
      {target: null, index},
    ];
    this.columns[0].turn(first.target, first.index, pinned, sides !== null);
    this.columns[1].turn(second.target, second.index, pinned, sides !== null);
    this.tell();
  }

  /** Draws what is told by now. */
  tell() {
    const {target, index, sides} = this;
    const head = sides ? headOf(sides) : target ? [] : nothing(index);
    const changed = [become(this.head, head), ...this.columns.map((one) => one.tell())];
    if (changed.some(Boolean)) this.measure();
  }

  /** Says so where there is more than there is room for. */
  measure() {
    this.element.classList.remove("more-below");
    const {scrollHeight, clientHeight} = this.element;
    const explained = this.columns.some((one) => one.why.pod !== null);
    this.element.classList.toggle("more-below", explained && scrollHeight > clientHeight + 2);
  }

  /**
   * Tells what was observed.
   * @param {object|null} observed an Observation
   */
  observe(observed) {
    for (const one of this.columns) one.observe(observed);
    if (this.target && this.index) this.tell();
  }
}

/** What both sides have alike, and whose it is on each. */
function headOf(sides) {
  const [{target, index}] = sides;
  if (target.cpu === undefined) return [make("h2", {class: "pod-title"}, target.pod)];
  const whose = sides.map((side) => whoseIs(target.cpu, side.index)).join(" → ");
  return [
    make("h2", {}, `CPU ${target.cpu}`, make("span", {class: "where"}, whereIs(target.cpu, index))),
    make("p", {class: "whose"}, whose),
  ];
}

function nothing(index) {
  const facts = index?.scene.facts ?? [];
  return [
    make("p", {class: "hint"}, "Point at a CPU or a pod to see who has what, and why."),
    make(
      "p",
      {class: "hint keys"},
      keycap("↵"),
      " or a click pins it, ",
      keycap("Esc"),
      " releases, ",
      keycap("?"),
      " tells all keys",
    ),
    facts.length ? make("dl", {class: "sets"}, ...facts.map(factOf)) : null,
  ].filter(Boolean);
}

/** A key as it is printed on one. */
export function keycap(name) {
  return make("kbd", {}, name);
}
