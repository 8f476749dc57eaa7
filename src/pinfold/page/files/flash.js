/** What has changed is shown once, softly. */

const calm = matchMedia("(prefers-reduced-motion: reduce)");
/** @type {WeakMap<Element, Animation>} */
const running = new WeakMap();

/**
 * Puts a ring around an element that goes by itself; it reads nothing of the page, so that nothing is laid out for it.
 * @param {Element} element
 */
export function flashOnce(element) {
  running.get(element)?.cancel();
  // What is beside others in a list has no room around it.
  const outlineOffset = element.classList.contains("pod") ? "-3px" : "1px";
  const ring = {outline: "3px solid var(--flash)", outlineOffset};
  const frames = [ring, {...ring, offset: 0.5}, {outline: "3px solid transparent", outlineOffset}];
  const timing = calm.matches ? {duration: 3000, easing: "steps(2)"} : {duration: 1600, easing: "ease-out"};
  running.set(element, element.animate(frames, timing));
}
