/** Who has what is pointed at, and why. */
import {parseCPUs} from "./cpusets.js";
import {become, counted, make} from "./dom.js";
import {factOf} from "./facts.js";
import {swatch} from "./paints.js";
import {Why} from "./why.js";

export class Panel {
  /**
   * @param {import("./attention.js").Attention} attention
   * @param {((pod: object) => Promise<string[]|null>)} explain the lines of `pinfold explain`; null: there are none
   */
  constructor(attention, explain) {
    this.attention = attention;
    this.target = null;
    this.index = null;
    this.usage = new Map();
    this.idle = null;
    this.told = make("div", {});
    this.why = new Why(explain, () => this.tell());
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
      this.told,
      this.why.element,
      this.close,
    );
    new ResizeObserver(() => this.measure()).observe(this.element);
  }

  /**
   * Draws what is pointed at; what is told of it already is left alone.
   * @param {object|null} target
   * @param {import("./model.js").SceneIndex} index of the view that it is in
   */
  draw(target, index) {
    this.target = target;
    this.index = index;
    const pinned = this.attention.pinned !== null;
    this.element.classList.toggle("pinned", pinned);
    this.element.classList.toggle("empty", !target);
    this.close.hidden = !pinned;
    const pod = target?.pod ? index.pods.get(target.pod) : null;
    this.why.turn(pod ?? null, pod ? JSON.stringify([target.scene, target.pod, pod.uid]) : "", pinned);
    this.tell();
  }

  /** Draws what is told by now. */
  tell() {
    const {target, index} = this;
    const parts = target ? this.parts(target, index) : this.nothing(index);
    const changed = become(this.told, parts);
    if (this.why.drawn() || changed) this.measure();
  }

  /** Says so where there is more than there is room for. */
  measure() {
    this.element.classList.remove("more-below");
    const {scrollHeight, clientHeight} = this.element;
    this.element.classList.toggle("more-below", this.why.pod !== null && scrollHeight > clientHeight + 2);
  }

  nothing(index) {
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

  parts(target, index) {
    const parts = [];
    if (target.cpu !== undefined && index.cells.has(target.cpu)) parts.push(...this.cpu(target.cpu, index));
    else if (target.state) parts.push(...stateParts(target.state, index));
    const pod = target.pod ? index.pods.get(target.pod) : null;
    if (pod) parts.push(...this.pod(pod, target));
    else if (target.pod && !parts.length)
      parts.push(make("p", {class: "hint"}, `${target.pod} is not here any more.`));
    return parts;
  }

  cpu(cpu, index) {
    const cell = index.cells.get(cpu);
    const place = index.places.get(cpu);
    const idle = this.idle?.[cpu];
    const paint = swatch((cell.owner ?? cell.state).paint);
    const head = make("h2", {}, paint, `CPU ${cpu}`);
    if (idle !== undefined)
      head.append(make("span", {class: "busy"}, `${Math.round((1 - idle) * 100)} % busy`));
    const where = place ? [...place.path, `core ${place.core}`].join(" · ") : "";
    return [
      head,
      make("p", {class: "where"}, where),
      make("p", {class: "whose"}, cell.owner ? index.words(cpu) : capital(index.words(cpu))),
    ];
  }

  pod(pod, target) {
    const key = `${pod.namespace}/${pod.name}`;
    const alone = target.cpu === undefined;
    const parts = [];
    if (alone)
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
    const lines = (pod.containers ?? []).filter((one) => pod.admitted || one.cpus);
    if (lines.length)
      parts.push(make("dl", {class: "facts"}, ...lines.flatMap((one) => this.container(one, key))));
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
    if (this.target && this.index) this.tell();
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

function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** A key as it is printed on one. */
export function keycap(name) {
  return make("kbd", {}, name);
}
