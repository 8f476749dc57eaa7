/**
 * How cells and swatches are painted: a class for each Paint of a scene, in a style sheet of our own.
 *
 * Colours come from the scene and are looked at before they become a style.
 */
import {make} from "./dom.js";

const STRIPES = {
  rising: ["135deg"],
  falling: ["45deg"],
  upright: ["90deg"],
  level: ["180deg"],
  both: ["45deg", "135deg"],
};
const COLOR = /^#[0-9a-f]{6}$/;

const sheet = new CSSStyleSheet();
document.adoptedStyleSheets.push(sheet);
/** @type {Map<string, string>} */
const classes = new Map();
/** @type {WeakMap<object, string>} the same by the paint itself: many cells have one */
const known = new WeakMap();

/**
 * The classes of what is painted so.
 * @param {object} paint a Paint
 * @returns {string}
 */
export function paintClass(paint) {
  let found = known.get(paint);
  if (found === undefined) {
    found = classOf(paint);
    known.set(paint, found);
  }
  return found;
}

function classOf(paint) {
  const key = JSON.stringify(paint);
  let found = classes.get(key);
  if (found === undefined) {
    const name = `paint-${classes.size}`;
    const declared = [
      `--back:${scheme(paint.background, paint.dark_background)}`,
      `--on:${scheme(paint.text, paint.dark_text)}`,
    ];
    let striped = "";
    const angles = STRIPES[paint.stripes];
    if (angles && COLOR.test(paint.stripe)) {
      const lines = angles.map(
        (angle) => `repeating-linear-gradient(${angle},transparent 0 .3em,${paint.stripe} .3em .45em)`,
      );
      declared.push(`--stripes:${lines.join(",")}`);
      striped = " striped";
    }
    sheet.insertRule(`.${name}{${declared.join(";")}}`, sheet.cssRules.length);
    found = `${name}${striped}${paint.outline ? " outline" : ""}`;
    classes.set(key, found);
  }
  return found;
}

function scheme(light, dark = light) {
  const safe = [light, dark].map((one) => (COLOR.test(one) ? one : "#808080"));
  return safe[0] === safe[1] ? safe[0] : `light-dark(${safe[0]},${safe[1]})`;
}

/**
 * A small painted square with its mark; those who hear the page are told the words beside it.
 * @param {object} paint a Paint
 * @param {string} [letters] in place of the paint's mark
 */
export function swatch(paint, letters = paint.mark) {
  return make("span", {class: `swatch ${paintClass(paint)}`, "aria-hidden": "true"}, letters.trim());
}
