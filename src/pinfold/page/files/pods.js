/** The list of pods beside a map, with its filter and its orders. */
import {rowsOf} from "./alike.js";
import {Keyed, make, putInOrder} from "./dom.js";
import {countOfPods, line} from "./legend.js";
import {flashOnce} from "./flash.js";
import {podKey} from "./model.js";
import {podRow} from "./pod_row.js";
import {ORDERS, sifted, sorted} from "./sieve.js";

const MOST = 300; // rows at once; more are shown when they are asked for

export class PodList {
  /**
   * @param {string} name of the node
   * @param {import("./attention.js").Attention} attention
   * @param {number} number of the view
   */
  constructor(name, attention, number) {
    this.attention = attention;
    this.number = number;
    this.index = null;
    this.shown = MOST;
    this.rows = new Keyed();
    this.count = make("span", {class: "count-of-pods"});
    this.filter = make("input", {
      type: "search",
      class: "filter",
      placeholder: "Filter: a name, a CPU, numa:0",
      "aria-label": `Filter the pods of ${name} by name, namespace, CPU number, or node such as numa:0`,
      autocomplete: "off",
      spellcheck: "false",
      oninput: () => this.draw(this.index, false),
    });
    this.order = make(
      "select",
      {"aria-label": `Order of the pods of ${name}`, onchange: () => this.draw(this.index, false)},
      ...Object.keys(ORDERS).map((order) => make("option", {}, order)),
    );
    this.list = make("ul", {class: "pods", "aria-label": `Pods of ${name}`});
    this.nothing = make("p", {class: "nothing"});
    this.more = make("button", {type: "button", class: "more", onclick: () => this.showMore()});
    this.element = make(
      "section",
      {class: "pod-side", "aria-label": `Pods of ${name}`},
      make("div", {class: "pod-bar"}, make("h2", {}, "Pods"), this.count, this.filter, this.order),
      this.list,
      this.nothing,
      this.more,
    );
    this.listen();
  }

  listen() {
    const over = (event) => {
      const row = event.target.closest?.(".pod");
      this.attention.point(row ? this.target(row) : null);
    };
    this.list.addEventListener("pointerover", (event) => event.pointerType !== "touch" && over(event));
    this.list.addEventListener("pointerleave", () => this.attention.point(null));
    this.list.addEventListener("focusin", (event) => event.target.matches(":focus-visible") && over(event));
    this.list.addEventListener("focusout", () => this.attention.point(null));
    this.list.addEventListener("click", (event) => {
      const head = event.target.closest(".pod-head");
      if (head) this.attention.pin(this.target(head.parentElement));
    });
  }

  target(row) {
    return {scene: this.number, pod: row.dataset.pod};
  }

  showMore() {
    this.shown += MOST;
    this.draw(this.index, false);
  }

  /**
   * @param {import("./model.js").SceneIndex} index
   * @param {boolean} flash whether what is new is shown so
   */
  draw(index, flash) {
    this.index = index;
    const {pods, at} = index.scene;
    // Of a moment it is not known who was there before it.
    const none = at === null ? "No pod has come yet." : "No pod at this moment.";
    const wanted = sifted(pods, this.filter.value, index);
    const rows = rowsOf(sorted(wanted, this.order.value, index));
    const {elements, fresh} = this.rows.elements(
      rows.slice(0, this.shown),
      (row) => row.key,
      (row) => podRow(row, index, podKey(row.pods[0])),
      (row) => this.seen(row),
    );
    putInOrder(this.list, elements);
    if (flash) fresh.forEach(flashOnce);
    line(
      this.count,
      wanted.length === pods.length ? countOfPods(pods) : `${wanted.length} of ${countOfPods(pods)}`,
    );
    line(this.nothing, wanted.length ? "" : pods.length ? "No pod is like this." : none);
    this.more.textContent = `${rows.length - elements.length} more`;
    this.more.hidden = rows.length === elements.length;
    this.list.hidden = !rows.length;
    this.light(this.attention.target);
  }

  /** What of a row is drawn: its colours, and not which CPUs the shared pool has just now. */
  seen(row) {
    const owners = this.index.ownersOfPod.get(podKey(row.pods[0])) ?? [];
    const containers = (row.pods[0].containers ?? []).map((one) =>
      one.exclusive ? one : {...one, cpus: Boolean(one.cpus)},
    );
    const [first, ...others] = row.pods;
    return [
      this.index.states.has("shared pool"),
      owners.map((owner) => owner.paint),
      {...first, containers, why: null},
      others.map(podKey),
    ];
  }

  /** The CPUs of those that the filter leaves; null where there is none. */
  get sifted() {
    if (!this.filter.value.trim() || !this.index) return null;
    const found = new Set();
    for (const pod of sifted(this.index.scene.pods, this.filter.value, this.index)) {
      for (const owner of this.index.ownersOfPod.get(podKey(pod)) ?? []) {
        for (const cpu of this.index.cpusOf({owner: owner.key})) found.add(cpu);
      }
    }
    return found;
  }

  /**
   * Shows which row is pointed at.
   * @param {object|null} target
   */
  light(target) {
    const pinned = this.attention.pinned !== null;
    for (const row of this.list.children) {
      const on = Boolean(target?.pod) && row.dataset.pod === target.pod;
      if (row.classList.contains("on") !== on) row.classList.toggle("on", on);
      const pressed = String(on && pinned);
      const head = row.firstElementChild;
      if (head.getAttribute("aria-pressed") !== pressed) head.setAttribute("aria-pressed", pressed);
    }
  }

  /** Brings the row of a pod into sight, within the list alone. */
  reveal(pod) {
    const row = [...this.list.children].find((one) => one.dataset.pod === pod);
    row?.scrollIntoView({block: "nearest"});
  }
}
