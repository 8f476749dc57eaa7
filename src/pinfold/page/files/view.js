/** One scene on the page: its words, its map, and its pods. */
import {Keyed, make, putInOrder} from "./dom.js";
import {factOf} from "./facts.js";
import {Legend, line} from "./legend.js";
import {NodeMap} from "./map.js";
import {placesOf, SceneIndex} from "./model.js";
import {PodList} from "./pods.js";

export class View {
  /**
   * @param {string} name of the node
   * @param {import("./attention.js").Attention} attention
   * @param {number} number of the view, from 0
   * @param {boolean} alone whether it is the only one, whose title the page has
   */
  constructor(name, attention, number, alone) {
    this.attention = attention;
    this.number = number;
    this.index = null;
    this.legend = new Legend(attention, number);
    this.map = new NodeMap(name, attention, number);
    this.pods = new PodList(name, attention, number);
    this.title = make("h2", {class: "scene-title", hidden: alone});
    this.subtitle = make("p", {class: "subtitle", hidden: alone});
    this.zones = make("div", {class: "zones"});
    this.rooms = make("section", {class: "rooms"}, make("h2", {}, "Memory and devices"), this.zones);
    this.facts = make("dl", {class: "sets"});
    this.notes = make("ul", {class: "notes", "aria-label": "Notes"});
    this.zoneRows = new Keyed();
    this.factRows = new Keyed();
    this.noteRows = new Keyed();
    this.alone = alone;
    this.element = make(
      "section",
      {class: "map-side", "aria-label": `CPUs of ${name}`},
      this.title,
      this.subtitle,
      this.legend.bar,
      this.legend.list,
      this.map.element,
      this.notes,
      this.rooms,
      this.facts,
    );
    this.pods.filter.addEventListener("input", () => this.light(attention.target, null));
  }

  /**
   * Draws a scene.
   * @param {object} scene a Scene; without a root its CPUs are where they were
   * @param {boolean} flash whether what is otherwise is shown so
   */
  draw(scene, flash) {
    const root = scene.root ?? this.index?.root ?? {title: "", cores: [], boxes: []};
    const same =
      this.index && (root === this.index.root || JSON.stringify(root) === JSON.stringify(this.index.root));
    this.index = new SceneIndex(
      scene,
      same ? this.index.root : root,
      same ? this.index.places : placesOf(root),
    );
    if (!this.alone) {
      line(this.title, scene.title);
      line(this.subtitle, scene.subtitle);
    }
    this.legend.draw(this.index);
    this.map.draw(this.index, flash);
    this.pods.draw(this.index, flash);
    this.rest(scene);
  }

  rest(scene) {
    const told = (row) => JSON.stringify(row);
    putInOrder(this.zones, this.zoneRows.elements(scene.zones ?? [], (zone) => zone.title, zoneOf).elements);
    putInOrder(this.facts, this.factRows.elements(scene.facts ?? [], told, factOf).elements);
    putInOrder(
      this.notes,
      this.noteRows.elements(scene.notes ?? [], told, (note) => make("li", {}, note)).elements,
    );
    this.notes.hidden = !(scene.notes ?? []).length;
    this.rooms.hidden = !(scene.zones ?? []).length;
    this.facts.hidden = !(scene.facts ?? []).length;
  }

  /**
   * Lights what is pointed at, wherever that is; else what the filter has left.
   * @param {object|null} target
   */
  light(target) {
    const cpus = target ? this.index.cpusOf(target) : null;
    this.map.light(cpus?.size || target ? cpus : this.pods.sifted);
    this.map.select(
      this.attention.pinned?.scene === this.number ? (this.attention.pinned.cpu ?? null) : null,
    );
    this.pods.light(target);
  }
}

function zoneOf(zone) {
  return make(
    "section",
    {class: "zone"},
    make("h3", {}, zone.title),
    make("dl", {}, ...zone.gauges.flatMap(gaugeOf)),
  );
}

function gaugeOf(gauge) {
  const bar = make(
    "span",
    {class: gauge.used > 0.9 ? "gauge full" : "gauge", "aria-hidden": "true"},
    make("span"),
  );
  bar.firstElementChild.style.transform = `scaleX(${Math.min(1, Math.max(0, gauge.used ?? 0))})`;
  return [make("dt", {}, gauge.name), make("dd", {}, bar, make("span", {}, gauge.text))];
}
