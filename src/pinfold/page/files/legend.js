/** The bar and the legend above a map: how many CPUs there are of each kind. */
import {counted, Keyed, make, putInOrder, say} from "./dom.js";
import {parseCPUs} from "./cpusets.js";
import {paintClass, swatch} from "./paints.js";

export class Legend {
  /**
   * @param {import("./attention.js").Attention} attention
   * @param {number} number of the view
   */
  constructor(attention, number) {
    this.attention = attention;
    this.number = number;
    this.bar = make("div", {class: "bar", "aria-hidden": "true"});
    this.list = make("ul", {class: "legend", "aria-label": "Legend"});
    this.segments = new Keyed();
    this.items = new Keyed();
  }

  /** @param {import("./model.js").SceneIndex} index */
  draw(index) {
    const {owners, states} = index.scene;
    const owned = owners.map((one) => ({
      key: one.key,
      paint: one.paint,
      count: parseCPUs(one.cpus).length,
      owner: true,
    }));
    const others = states.map((one) => ({
      key: one.state,
      paint: one.paint,
      count: parseCPUs(one.cpus).length,
    }));
    const segments = [...owned, ...others].filter((one) => one.count);
    putInOrder(
      this.bar,
      this.segments.elements(
        segments,
        (one) => `${one.owner ? "o" : "s"} ${one.key}`,
        (one) => {
          const segment = make("span", {class: `segment ${paintClass(one.paint)}`});
          segment.style.flexGrow = one.count;
          return segment;
        },
      ).elements,
    );
    const exclusive = owned.reduce((sum, one) => sum + one.count, 0);
    const lent = owners.reduce((sum, one) => sum + parseCPUs(one.lent ?? "").length, 0);
    const items = others.filter((one) => one.count);
    if (exclusive)
      items.unshift({key: "exclusive", paints: owners.slice(0, 3).map((one) => one.paint), count: exclusive});
    if (lent)
      items.splice(1, 0, {key: "of them lent", lent: owners.find((one) => one.lent).paint, count: lent});
    putInOrder(
      this.list,
      this.items.elements(
        items,
        (one) => one.key,
        (one) => this.item(one),
      ).elements,
    );
  }

  item(one) {
    const sign = one.lent ? lentSwatch(one.lent) : one.paints ? fan(one.paints) : swatch(one.paint);
    const words = [sign, make("span", {}, `${one.key} `), make("b", {}, String(one.count))];
    if (!one.paint) return make("li", {}, ...words);
    const target = {scene: this.number, state: one.key};
    return make(
      "li",
      {},
      make(
        "button",
        {
          type: "button",
          onpointerenter: () => this.attention.point(target),
          onpointerleave: () => this.attention.point(null),
          onclick: () => this.attention.pin(target),
        },
        ...words,
      ),
    );
  }
}

function lentSwatch(paint) {
  const sign = swatch(paint, "~");
  sign.classList.add("lent");
  return sign;
}

/** Slices of the first owners' colours. */
function fan(paints) {
  return make(
    "span",
    {class: "fan", "aria-hidden": "true"},
    ...paints.map((one) => make("span", {class: paintClass({...one, stripes: ""})})),
  );
}

/** `6 pods · 1 rejected`. */
export function countOfPods(pods) {
  const rejected = pods.filter((pod) => !pod.admitted).length;
  const ended = pods.filter((pod) => pod.admitted && pod.ended).length;
  const told = [counted(pods.length, "pod")];
  if (rejected) told.push(`${rejected} rejected`);
  if (ended) told.push(`${ended} ended`);
  return told.join(" · ");
}

/** Sets a line of text, and hides it where there is none. */
export function line(element, text) {
  say(element, text);
  element.hidden = !text;
}
