/** Why a pod has what it has: the lines of `pinfold explain`. */
import {become, make} from "./dom.js";

const PATIENCE = 200; // milliseconds for which something is pointed at before its reasons are asked for

export class Why {
  /**
   * @param {(pod: object) => Promise<string[]|null>} explain the lines; null: there are none
   * @param {() => void} changed what is told has come, and was not to be had at once
   */
  constructor(explain, changed) {
    this.explain = explain;
    this.changed = changed;
    this.element = make("div", {class: "why"});
    this.key = "";
    this.pod = null;
    /** @type {string[]|null} */
    this.lines = null;
    this.waiting = 0;
    this.asked = 0; // how often, of this pod
    this.fresh = false;
  }

  /**
   * Turns to a pod. What was told of it stays until something else is told, and a question that waits goes on waiting:
   * on a busy node nobody would be answered else.
   * @param {object|null} pod
   * @param {string} key the same for as long as it is the same pod
   * @param {boolean} pinned whether it is asked for at once
   */
  turn(pod, key, pinned) {
    this.pod = pod;
    if (key !== this.key) {
      this.key = key;
      this.forget();
    }
    if (!pod) return;
    if (Array.isArray(pod.why)) this.tell(pod.why);
    else if (pinned || this.asked) this.ask();
    else if (!this.waiting) this.waiting = setTimeout(() => this.ask(), PATIENCE);
  }

  forget() {
    clearTimeout(this.waiting);
    this.waiting = this.asked = 0;
    this.lines = null;
    this.draw();
  }

  async ask() {
    clearTimeout(this.waiting);
    this.waiting = 0;
    const {key} = this;
    const asked = ++this.asked;
    const isLast = () => key === this.key && asked === this.asked;
    try {
      const lines = await this.explain(this.pod);
      if (isLast()) this.tell(lines);
    } catch (error) {
      if (!isLast()) return;
      this.lines = null;
      this.draw(make("p", {class: "extra"}, `Why is not to be had now: ${error.message}`));
    }
    if (isLast()) this.changed();
  }

  /** @param {string[]|null} lines */
  tell(lines) {
    this.lines = lines;
    if (lines?.length) {
      const told = linesOf(lines.join("\n").trimEnd());
      this.draw(make("h3", {}, "Why"), make("pre", {tabindex: 0, "aria-label": "Why"}, ...told));
    } else this.draw();
  }

  draw(...inside) {
    if (become(this.element, inside)) this.fresh = true;
  }

  /** Whether something else is told than when that was asked for last. */
  drawn() {
    const {fresh} = this;
    this.fresh = false;
    return fresh;
  }

  /** Whether this is told in the lines. */
  says(text) {
    return Boolean(text) && (this.lines ?? []).some((one) => one.includes(text));
  }
}

/** Lines whose ends go on below their beginning, or below their second column. */
function linesOf(text) {
  return text.split("\n").map((line) => {
    const one = make("span", {class: "line"}, `${line}\n`);
    const column = /^ *\S.*? {2,}/.exec(line)?.[0].length ?? 0;
    const indent = /^ */.exec(line)[0].length + (line.startsWith(" ") ? 2 : 0);
    one.style.setProperty("--hang", `${column && column < 16 ? column : indent}ch`);
    return one;
  });
}
