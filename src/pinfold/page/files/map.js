/** The map of a node: boxes within boxes, and a cell for each CPU. */
import {make, mark, say} from "./dom.js";
import {flashOnce} from "./flash.js";
import {below, isLean, layOut} from "./layout.js";
import {paintClass} from "./paints.js";
import {stepTo} from "./walk.js";

/** What a box is; parts that have no room are left out of sight, not cut in the middle. */
function titleOf(box) {
  const parts = box.title.split(" · ").map((part, at) => make("span", {}, at ? `· ${part}` : part));
  return make("div", {class: "title", "aria-hidden": "true", title: box.title}, ...parts);
}

export class NodeMap {
  /**
   * @param {string} name of the node
   * @param {import("./attention.js").Attention} attention
   * @param {number} number of the view
   */
  constructor(name, attention, number) {
    this.attention = attention;
    this.number = number;
    this.element = make("div", {
      class: "map",
      role: "listbox",
      "aria-label": `CPUs of ${name}`,
      "aria-describedby": "keys-of-maps",
    });
    /** By CPU: its elements, and what they show. */
    this.cells = new Map();
    /** @type {HTMLElement[]} */
    this.order = [];
    this.index = null;
    this.lit = null;
    this.size = "";
    this.listen();
    this.watcher = new ResizeObserver(() => this.fit());
    this.watcher.observe(this.element);
  }

  listen() {
    const over = (event) => {
      const cell = event.target.closest?.(".cell");
      this.attention.point(cell ? this.target(Number(cell.dataset.cpu)) : null);
    };
    this.element.addEventListener("pointerover", (event) => event.pointerType !== "touch" && over(event));
    this.element.addEventListener("pointerleave", () => this.attention.point(null));
    this.element.addEventListener("focusin", (event) => {
      for (const cell of this.order) if (cell.tabIndex === 0 && cell !== event.target) cell.tabIndex = -1;
      event.target.tabIndex = 0;
      if (event.target.matches(":focus-visible")) over(event);
    });
    this.element.addEventListener("focusout", () => this.attention.point(null));
    this.element.addEventListener("click", (event) => {
      const cell = event.target.closest(".cell");
      if (!cell) return;
      cell.focus({preventScroll: true});
      this.attention.pin(this.target(Number(cell.dataset.cpu)));
    });
    this.element.addEventListener("keydown", (event) => {
      const cell = event.target.closest(".cell");
      if (!cell || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        this.attention.pin(this.target(Number(cell.dataset.cpu)));
        return;
      }
      const next = stepTo(event.key, cell, this.order);
      if (next) {
        event.preventDefault();
        next.focus();
      }
    });
  }

  /** What a CPU is to those who point at it. */
  target(cpu) {
    const cell = this.index.cells.get(cpu);
    return {
      scene: this.number,
      cpu,
      owner: cell?.owner?.key ?? null,
      state: cell?.state?.state ?? null,
      pod: cell?.owner?.pod ?? null,
    };
  }

  /**
   * Draws a scene; what is as before is left alone.
   * @param {import("./model.js").SceneIndex} index
   * @param {boolean} flash whether what is otherwise is shown so
   */
  draw(index, flash) {
    const rebuilt = this.index?.root !== index.root;
    this.index = index;
    if (rebuilt) this.build();
    const changed = [];
    for (const [cpu, one] of this.cells) {
      const looks = this.looks(cpu);
      if (looks.told === one.looks) continue;
      if (one.looks && flash) changed.push(one.cell);
      one.looks = looks.told;
      one.cell.className = looks.classes;
      mark(one.cell, "aria-label", looks.label);
      say(one.owner, looks.mark);
    }
    changed.forEach(flashOnce);
    this.light(this.lit);
  }

  looks(cpu) {
    const cell = this.index.cells.get(cpu);
    const label = this.index.label(cpu);
    if (!cell) return {told: label, classes: "cell", mark: "", label};
    const paint = paintClass((cell.owner ?? cell.state).paint);
    let classes = `cell ${paint}`;
    if (cell.lent) classes += " lent";
    if (cell.owner?.mixed) classes += " mixed";
    if (cell.marked) classes += " marked";
    const letters = (cell.owner ?? cell.state).paint.mark.trim() + (cell.lent ? "~" : "");
    return {told: `${classes} ${letters} ${label}`, classes, mark: letters, label};
  }

  build() {
    const focused = this.element.contains(document.activeElement) ? document.activeElement.dataset.cpu : null;
    this.cells = new Map();
    this.order = [];
    this.insides = new Map();
    this.size = "";
    // The width is asked for while there is nothing to lay out.
    this.element.replaceChildren();
    const room = this.room();
    const built = this.box(this.index.root, 0);
    this.fit(room);
    this.element.append(built);
    const first = this.order.find((cell) => cell.dataset.cpu === focused) ?? this.order[0];
    if (first) first.tabIndex = 0;
    if (focused !== null) first?.focus();
  }

  /** @returns {HTMLElement} */
  box(box, depth) {
    const titled = Boolean(box.title);
    const inside = box.cores?.length
      ? make("div", {class: "cores", role: "none"}, ...box.cores.map((core) => this.core(core)))
      : make(
          "div",
          {class: "boxes", role: "none"},
          ...(box.boxes ?? []).map((one) => this.box(one, below(box, depth))),
        );
    this.insides.set(box, inside);
    return make(
      "div",
      {
        class: !titled ? "bare" : isLean(box, depth) ? "lean" : `box depth-${depth % 2}`,
        role: titled ? "group" : "none",
        "aria-label": titled ? box.title : null,
      },
      titled ? titleOf(box) : null,
      inside,
      ...(box.devices ?? []).map((one) => make("div", {class: "device", "aria-hidden": "true"}, one)),
    );
  }

  core(core) {
    return make("div", {class: "core", role: "none"}, ...core.cpus.map((cpu) => this.cell(cpu)));
  }

  cell(cpu) {
    const owner = make("span", {class: "mark"});
    const use = make("span", {class: "use", hidden: true});
    const cell = make(
      "div",
      {class: "cell", role: "option", tabindex: -1, "aria-selected": "false", "data-cpu": cpu},
      make("span", {class: "cpu"}, String(cpu)),
      owner,
      use,
    );
    this.cells.set(cpu, {cell, owner, use, looks: "", used: -1});
    this.order.push(cell);
    return cell;
  }

  /** How much room there is for the map: pixels. */
  room() {
    const rem = Number.parseFloat(getComputedStyle(document.documentElement).fontSize);
    return {width: this.element.clientWidth, rem};
  }

  /** Gives cells the size that fits best into what there is. */
  fit({width, rem} = this.room()) {
    if (!this.index || width <= 0) return;
    // On a telephone one scrolls anyway, and cells are touched.
    const height =
      window.innerWidth < 40 * rem
        ? 2.5 * window.innerHeight
        : Math.max(16 * rem, window.innerHeight - 16 * rem);
    const size = `${Math.round(width)} ${Math.round(height)} ${rem}`;
    if (size === this.size) return;
    this.size = size;
    const {lengths, columns} = layOut(this.index.root, width, height, rem);
    for (const [name, value] of Object.entries(lengths)) {
      this.element.style.setProperty(`--${name.toLowerCase()}`, `${value}px`);
    }
    // What moves by itself is a layer of its own to a browser: not hundreds of them.
    this.element.classList.toggle("few", this.order.length <= 128);
    this.element.classList.toggle("small", lengths.cell < 2.1 * rem);
    for (const [box, {across, each}] of columns) {
      const inside = this.insides.get(box);
      inside.style.setProperty("--across", across);
      if (!box.cores?.length) continue;
      inside.style.maxWidth = `${across * (each + lengths.coreGap) - lengths.coreGap}px`;
      inside.classList.toggle("beside", lengths.cell < 2.1 * rem && each > 2.9 * rem);
    }
  }

  /**
   * Shows how busy CPUs are; null: nobody knows.
   * @param {Object<string, number>|null} idle the share of the time, by CPU
   */
  use(idle) {
    for (const [cpu, one] of this.cells) {
      const share = idle?.[cpu];
      const used = share === undefined ? -1 : Math.round((1 - share) * 50) / 50;
      if (used === one.used) continue;
      one.used = used;
      one.use.style.transform = `scaleX(${Math.max(0, used)})`;
      one.use.hidden = used < 0;
    }
  }

  /**
   * Lights the cells of what is pointed at, and dims the others.
   * @param {Set<number>|null} cpus
   */
  light(cpus) {
    this.lit = cpus;
    this.element.classList.toggle("lit", cpus !== null);
    for (const [cpu, {cell}] of this.cells) {
      const on = cpus?.has(cpu) ?? false;
      if (cell.classList.contains("on") !== on) cell.classList.toggle("on", on);
    }
  }

  /** Tells which CPU is pinned. */
  select(cpu) {
    for (const [one, {cell}] of this.cells) mark(cell, "aria-selected", String(one === cpu));
  }
}
