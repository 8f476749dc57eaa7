/** What is told of one scene: who has what is pointed at, and why. */
import {parseCPUs} from "./cpusets.js";
import {become, counted, make} from "./dom.js";
import {swatch} from "./paints.js";
import {Why} from "./why.js";

export class Told {
  /**
   * @param {((pod: object) => Promise<string[]|null>)} explain the lines of `pinfold explain`; null: there are none
   * @param {() => void} changed the reasons have come
   */
  constructor(explain, changed) {
    this.usage = new Map();
    this.idle = null;
    this.target = null;
    this.index = null;
    this.within = false;
    this.told = make("div", {});
    this.why = new Why(explain, changed);
    this.element = make("div", {class: "told"}, this.told, this.why.element);
  }

  /**
   * Turns to what is pointed at.
   * @param {object|null} target
   * @param {import("./model.js").SceneIndex} index of the view that it is in
   * @param {boolean} pinned
   * @param {boolean} within whether it is one side of two: what both have alike stands above them
   */
  turn(target, index, pinned, within) {
    this.target = target;
    this.index = index;
    this.within = within;
    this.element.hidden = !target;
    const pod = target?.pod ? index.pods.get(target.pod) : null;
    this.why.turn(pod ?? null, pod ? JSON.stringify([target.scene, target.pod, pod.uid]) : "", pinned);
  }

  /** Draws what is told by now; whether something is otherwise. */
  tell() {
    const {target, index} = this;
    const parts = target ? this.parts(target, index) : [];
    if (target && this.within) parts.unshift(this.title(target.cpu, index));
    const changed = become(this.told, parts);
    return this.why.drawn() || changed;
  }

  /** Which side it is, and how it is drawn there. */
  title(cpu, index) {
    const cell = index.cells.get(cpu);
    const sign = cell ? [swatch((cell.owner ?? cell.state).paint), " "] : [];
    return make("h3", {}, ...sign, index.scene.title);
  }

  parts(target, index) {
    const parts = [];
    const cpu = target.cpu !== undefined && index.cells.has(target.cpu);
    if (cpu && !this.within) parts.push(...this.cpu(target.cpu, index));
    else if (target.state && !this.within) parts.push(...stateParts(target.state, index));
    const pod = target.pod ? index.pods.get(target.pod) : null;
    if (pod) parts.push(...this.pod(pod, target, index));
    else if (target.pod && !parts.length)
      parts.push(make("p", {class: "hint"}, `${target.pod} is not here any more.`));
    return parts;
  }

  cpu(cpu, index) {
    const cell = index.cells.get(cpu);
    const idle = this.idle?.[cpu];
    const paint = swatch((cell.owner ?? cell.state).paint);
    const head = make("h2", {}, paint, `CPU ${cpu}`);
    if (idle !== undefined)
      head.append(make("span", {class: "busy"}, `${Math.round((1 - idle) * 100)} % busy`));
    return [
      head,
      make("p", {class: "where"}, whereIs(cpu, index)),
      make("p", {class: "whose"}, cell.owner ? index.words(cpu) : capital(index.words(cpu))),
    ];
  }

  pod(pod, target, index) {
    const key = `${pod.namespace}/${pod.name}`;
    const other = target.cpu !== undefined && index.cells.get(target.cpu)?.owner?.pod !== target.pod;
    const parts = [];
    if (other || (target.cpu === undefined && !this.within))
      parts.push(
        make("h2", {class: "pod-title"}, make("span", {class: "namespace"}, `${pod.namespace}/`), pod.name),
      );
    const facts = [pod.word, pod.workload ? `of ${pod.workload}` : "", usageOf(this.usage.get(key))]
      .filter(Boolean)
      .join(" · ");
    parts.push(make("p", {class: "where"}, facts));
    // The lines begin with the reason.
    if ((!pod.admitted || pod.reason) && !this.why.says(pod.reason)) {
      parts.push(
        make(
          "p",
          {class: "reason"},
          make("b", {}, pod.reason ?? "rejected"),
          pod.message ? ` ${pod.message}` : "",
        ),
      );
    }
    // Two have room for the reasons, which tell the CPUs.
    const lines = this.within && pod.why ? [] : (pod.containers ?? []);
    const shown = lines.filter((one) => pod.admitted || one.cpus);
    if (shown.length)
      parts.push(make("dl", {class: "facts"}, ...shown.flatMap((one) => this.container(one, key))));
    for (const one of pod.whole ?? []) parts.push(make("p", {class: "extra"}, one));
    return parts;
  }

  container(one, key) {
    const count = parseCPUs(one.cpus).length;
    const where = one.exclusive
      ? `${one.cpus} · ${counted(count, "CPU")} of its own`
      : `${one.remark || `shares ${one.cpus}`}${count ? ` · ${counted(count, "CPU")}` : ""}`;
    const busy = this.usage.get(key)?.get(one.name);
    const extras = [...(one.exclusive && one.remark ? [one.remark] : []), ...(one.extras ?? [])];
    return [
      make("dt", {}, one.name, one.kind ? ` ${one.kind}` : ""),
      make(
        "dd",
        {},
        where,
        busy === undefined ? "" : ` · ${busy.toFixed(2)} used`,
        ...extras.map((extra) => make("span", {class: "extra"}, extra)),
      ),
    ];
  }

  /**
   * Tells what was observed.
   * @param {object|null} observed an Observation
   */
  observe(observed) {
    this.idle = observed?.idle ?? null;
    this.usage = new Map();
    for (const one of observed?.containers ?? []) {
      if (!this.usage.has(one.pod)) this.usage.set(one.pod, new Map());
      if (typeof one.last.usage === "number") this.usage.get(one.pod).set(one.container, one.last.usage);
    }
  }
}

function usageOf(containers) {
  if (!containers || containers.size < 2) return ""; // that of one is told beside it
  const sum = [...containers.values()].reduce((all, one) => all + one, 0);
  return `${sum.toFixed(2)} CPUs used`;
}

function stateParts(name, index) {
  const state = index.states.get(name);
  if (!state) return [];
  const cpus = parseCPUs(state.cpus);
  const parts = [
    make("h2", {}, swatch(state.paint), capital(name)),
    make("p", {class: "where"}, `${counted(cpus.length, "CPU")} · ${state.cpus}`),
  ];
  const there = index.scene.pods.filter(
    (pod) =>
      pod.admitted &&
      !pod.ended &&
      (pod.containers ?? []).some((one) => !one.exclusive && parseCPUs(one.cpus).includes(cpus[0])),
  );
  if (there.length)
    parts.push(make("p", {class: "whose"}, `Containers of ${counted(there.length, "pod")} may run there.`));
  return parts;
}

/** Where a CPU is, in words. */
export function whereIs(cpu, index) {
  const place = index.places.get(cpu);
  return place ? [...place.path, `core ${place.core}`].join(" · ") : "";
}

/** Whose a CPU is, as a line begins with it: names stay as they are. */
export function whoseIs(cpu, index) {
  const words = index.whose(cpu);
  return index.cells.get(cpu)?.owner ? words : capital(words);
}

function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
