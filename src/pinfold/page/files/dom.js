/**
 * Elements: made, put in order, and changed only where they differ.
 *
 * Texts come in as text nodes and attributes, never as HTML: names of pods are anybody's.
 */

/**
 * Makes an element.
 * @param {string} name of the element
 * @param {Object<string, any>} attributes `on...` are listeners; null, undefined and false are left out
 * @param {...(Node|string|null)} inside
 * @returns {HTMLElement}
 */
export function make(name, attributes = {}, ...inside) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...inside.filter((one) => one !== null));
  return element;
}

/**
 * Gives an element these children in this order; those that are there already are moved, not made anew.
 * @param {Element} parent
 * @param {Element[]} wanted
 */
export function putInOrder(parent, wanted) {
  const kept = new Set(wanted);
  for (const child of [...parent.children]) if (!kept.has(child)) child.remove();
  let at = parent.firstElementChild;
  for (const one of wanted) {
    if (one === at) at = at.nextElementSibling;
    else parent.insertBefore(one, at);
  }
}

/**
 * Makes what is in an element like what is wanted: nodes that are the same stay, with the focus, the selection and the
 * scrolling that they have; listeners are not looked at.
 * @param {Element} parent
 * @param {Node[]} wanted
 * @returns {boolean} whether something was otherwise
 */
export function become(parent, wanted) {
  const there = [...parent.childNodes];
  let changed = there.length > wanted.length;
  for (const one of there.slice(wanted.length)) one.remove();
  wanted.forEach((one, at) => {
    const old = there[at];
    if (old?.isEqualNode(one)) return;
    changed = true;
    if (!old) parent.append(one);
    else if (one.nodeType === Node.ELEMENT_NODE && old.cloneNode(false).isEqualNode(one.cloneNode(false)))
      become(old, [...one.childNodes]);
    else old.replaceWith(one);
  });
  return changed;
}

/**
 * Sets a text where it is another one.
 * @param {Element} element
 * @param {string} text
 */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Sets an attribute where it is another one; null takes it away.
 * @param {Element} element
 * @param {string} name
 * @param {string|null} value
 */
export function mark(element, name, value) {
  if (value === null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/**
 * Keeps one element for each key, and tells which are new or otherwise than before.
 * @template T
 */
export class Keyed {
  constructor() {
    /** @type {Map<string, {element: HTMLElement, told: string}>} */
    this.kept = new Map();
  }

  /**
   * The elements of things, in their order.
   * @param {T[]} things
   * @param {(one: T) => string} key
   * @param {(one: T) => HTMLElement} build called for what is new, and for what is otherwise
   * @param {(one: T) => any} seen what of it is to be seen; all of it without
   * @returns {{elements: HTMLElement[], fresh: HTMLElement[]}}
   */
  elements(things, key, build, seen = (one) => one) {
    const before = this.kept;
    this.kept = new Map();
    const elements = [];
    const fresh = [];
    for (const thing of things) {
      const name = key(thing);
      const told = JSON.stringify(seen(thing));
      let one = before.get(name);
      if (!one || one.told !== told) {
        one = {element: build(thing), told};
        fresh.push(one.element);
      }
      this.kept.set(name, one);
      elements.push(one.element);
    }
    return {elements, fresh};
  }
}

/**
 * `1 CPU`, `2 CPUs`.
 * @param {number} count
 * @param {string} noun
 */
export function counted(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}
