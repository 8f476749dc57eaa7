/** Who has what is pointed at, and why. */
import {parseCPUs} from "./cpusets.js";
import {counted, make} from "./dom.js";
import {factOf} from "./facts.js";
import {swatch} from "./paints.js";

const PATIENCE = 200; // milliseconds for which something is pointed at before its reasons are asked for

export class Panel {
  /**
   * @param {import("./attention.js").Attention} attention
   * @param {((pod: object) => Promise<string[]|null>)} explain the lines of `pinfold explain`; null: there are none
   */
  constructor(attention, explain) {
    this.attention = attention;
    this.explain = explain;
    this.waiting = 0;
    this.usage = new Map();
    this.idle = null;
    this.body = make("div", {class: "panel-body"});
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
    this.element = make("section", {class: "panel", "aria-label": "Who and why"}, this.body, this.close);
  }

  /**
   * @param {object|null} target
   * @param {import("./model.js").SceneIndex} index of the view that it is in
   */
  draw(target, index) {
    clearTimeout(this.waiting);
    const pinned = this.attention.pinned !== null;
    this.element.classList.toggle("pinned", pinned);
    this.element.classList.toggle("empty", !target);
    this.close.hidden = !pinned;
    const parts = target ? this.parts(target, index) : this.nothing(index);
    this.body.replaceChildren(...parts);
    const pod = target?.pod && index.pods.get(target.pod);
    this.element.classList.remove("more-below");
    if (!pod) return;
    const why = make("div", {class: "why"});
    this.body.append(why);
    const told = Array.isArray(pod.why) ? pod.why : null;
    if (told) this.reasons(why, told, pod);
    else this.waiting = setTimeout(() => this.ask(why, pod), pinned ? 0 : PATIENCE);
    this.measure();
  }

  async ask(why, pod) {
    try {
      const lines = await this.explain(pod);
      if (why.isConnected && lines?.length) this.reasons(why, lines, pod);
    } catch (error) {
      if (why.isConnected)
        why.replaceChildren(make("p", {class: "extra"}, `Why is not to be had now: ${error.message}`));
    }
  }

  reasons(why, lines, pod) {
    why.replaceChildren(
      make("h3", {}, "Why"),
      make("pre", {tabindex: 0, "aria-label": "Why"}, ...linesOf(lines.join("\n").trimEnd())),
    );
    // They begin with the reason.
    const said = pod.reason && lines.some((one) => one.includes(pod.reason));
    if (said) for (const one of this.body.querySelectorAll(".reason")) one.remove();
    this.measure();
  }

  /** Says so where there is more than there is room for. */
  measure() {
    const {scrollHeight, clientHeight} = this.element;
    this.element.classList.toggle("more-below", scrollHeight > clientHeight + 2);
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
    if (!pod.admitted || pod.reason) {
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
   * Notes what was observed, for what is drawn next.
   * @param {object|null} observed an Observation
   */
  observe(observed) {
    this.idle = observed?.idle ?? null;
    this.usage = new Map();
    for (const one of observed?.containers ?? []) {
      if (!this.usage.has(one.pod)) this.usage.set(one.pod, new Map());
      if (typeof one.last.usage === "number") this.usage.get(one.pod).set(one.container, one.last.usage);
    }
    const busy = this.body.querySelector(".busy");
    const cpu = this.attention.target?.cpu;
    if (busy && this.idle?.[cpu] !== undefined)
      busy.textContent = `${Math.round((1 - this.idle[cpu]) * 100)} % busy`;
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
