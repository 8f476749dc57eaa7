/** A scene, looked up by CPU, by owner and by pod. */
import {parseCPUs} from "./cpusets.js";

/**
 * Where each CPU is.
 * @param {object} root a SceneBox
 * @returns {Map<number, {core: number, path: string[], where: string}>} its core, the titles of the boxes around it
 *   with the outermost first, and both in words
 */
export function placesOf(root) {
  const places = new Map();
  const walk = (box, path) => {
    const inside = box.title ? [...path, box.title] : path;
    const around = inside.map(shortTitle).reverse().join(", ");
    for (const core of box.cores ?? []) {
      const where = [`core ${core.id}`, around].filter(Boolean).join(", ");
      for (const cpu of core.cpus) places.set(cpu, {core: core.id, path: inside, where});
    }
    for (const one of box.boxes ?? []) walk(one, inside);
  };
  walk(root, []);
  return places;
}

/** `namespace/name` of a pod. */
export function podKey(pod) {
  return `${pod.namespace}/${pod.name}`;
}

/**
 * What a scene says, by what is asked for. `cells` has for each CPU its `owner` or its `state`.
 */
export class SceneIndex {
  /**
   * @param {object} scene a Scene
   * @param {object} root where the CPUs are, which a scene of a stream may leave out
   * @param {ReturnType<typeof placesOf>} places
   */
  constructor(scene, root, places) {
    this.scene = scene;
    this.root = root;
    this.places = places;
    /** @type {Map<number, {owner: object|null, state: object|null, lent: boolean, marked: boolean}>} */
    this.cells = new Map();
    this.owners = new Map();
    this.ownersOfPod = new Map();
    this.states = new Map();
    this.pods = new Map();
    const marked = new Set(parseCPUs(scene.marked ?? ""));
    for (const state of scene.states) {
      this.states.set(state.state, state);
      for (const cpu of parseCPUs(state.cpus)) {
        this.cells.set(cpu, {owner: null, state, lent: false, marked: marked.has(cpu)});
      }
    }
    for (const owner of scene.owners) {
      this.owners.set(owner.key, owner);
      this.ownersOfPod.set(owner.pod, [...(this.ownersOfPod.get(owner.pod) ?? []), owner]);
      const lent = new Set(parseCPUs(owner.lent ?? ""));
      for (const cpu of parseCPUs(owner.cpus)) {
        this.cells.set(cpu, {owner, state: null, lent: lent.has(cpu), marked: marked.has(cpu)});
      }
    }
    for (const pod of scene.pods) this.pods.set(podKey(pod), pod);
  }

  /**
   * The CPUs that somebody points at.
   * @param {object|null} target see attention.js
   * @returns {Set<number>|null}
   */
  cpusOf(target) {
    if (!target) return null;
    if (target.owner) return new Set(parseCPUs(this.owners.get(target.owner)?.cpus ?? ""));
    if (target.state) return new Set(parseCPUs(this.states.get(target.state)?.cpus ?? ""));
    if (target.pod) return this.cpusOfPod(this.pods.get(target.pod));
    return null;
  }

  /**
   * A pod's own CPUs, or those that it shares where it has none.
   * @param {object|undefined} pod
   * @returns {Set<number>}
   */
  cpusOfPod(pod) {
    if (!pod || pod.ended || !pod.admitted) return new Set();
    const own = (this.ownersOfPod.get(podKey(pod)) ?? []).flatMap((owner) => parseCPUs(owner.cpus));
    if (own.length) return new Set(own);
    return new Set((pod.containers ?? []).flatMap((one) => parseCPUs(one.cpus)));
  }

  /**
   * What a CPU is, in words: `CPU 5, core 2, NUMA node 0: default/db postgres, exclusive`.
   * @param {number} cpu
   */
  label(cpu) {
    return `CPU ${cpu}, ${this.places.get(cpu)?.where ?? ""}: ${this.words(cpu)}`;
  }

  /** Whose a CPU is, in words, and whether that differs. */
  words(cpu) {
    return this.whose(cpu) + (this.cells.get(cpu)?.marked ? ", differs" : "");
  }

  /** Whose a CPU is, in words. */
  whose(cpu) {
    const cell = this.cells.get(cpu);
    if (!cell) return "not told";
    return cell.owner ? `${cell.owner.label}, exclusive${cell.lent ? ", lent" : ""}` : cell.state.state;
  }
}

/**
 * @typedef {{target: object, index: import("./model.js").SceneIndex}} Side
 */

/**
 * Both sides of what is pointed at; null where it is the same in both, or in one of them alone.
 * @param {object|null} target
 * @param {import("./view.js").View[]} views
 * @returns {Side[]|null}
 */
export function sidesOf(target, views) {
  if (!target) return null;
  const sides = views.map((view, scene) => ({
    index: view.index,
    target: target.cpu === undefined ? {scene, pod: target.pod} : view.map.target(target.cpu),
  }));
  if (target.cpu === undefined) {
    const [before, after] = sides.map(({index}) => toldOf(index.pods.get(target.pod)));
    return before && after && before !== after ? sides : null;
  }
  if (!sides.some(({index}) => index.cells.get(target.cpu)?.marked)) return null;
  if (!sides.every(({index}) => index.cells.has(target.cpu))) return null;
  // Where it is nobody's on one side, its owner of the other one may have been rejected: that is the reason.
  const owners = sides.map((side) => side.target.pod).reverse();
  return sides.map(({index, target: one}, at) => {
    const gone = index.pods.has(owners[at]) ? owners[at] : null;
    return {index, target: {...one, pod: one.pod ?? gone}};
  });
}

/** What of a pod may differ. */
function toldOf(pod) {
  if (!pod) return null;
  const own = (pod.containers ?? []).map((one) => [one.name, one.exclusive ? one.cpus : ""]);
  return JSON.stringify([podKey(pod), pod.admitted, pod.reason ?? "", own]);
}

/** What differs from one scene to the next, in words for those who hear the page. */
export function changesBetween(before, after) {
  const told = [];
  const came = [...after.pods.values()].filter((pod) => !before.pods.has(podKey(pod)));
  const gone = [...before.pods.values()].filter((pod) => !after.pods.has(podKey(pod)));
  const rejected = came.filter((pod) => !pod.admitted);
  if (rejected.length) told.push(`rejected: ${namesOf(rejected)}`);
  if (came.length > rejected.length) told.push(`came: ${namesOf(came.filter((pod) => pod.admitted))}`);
  if (gone.length) told.push(`gone: ${namesOf(gone)}`);
  for (const [key, owner] of after.owners) {
    const old = before.owners.get(key);
    if (old && old.cpus !== owner.cpus) told.push(`${owner.label}: CPUs ${old.cpus} to ${owner.cpus}`);
  }
  return told;
}

function namesOf(pods) {
  const first = pods.slice(0, 3).map(podKey).join(", ");
  return pods.length > 3 ? `${first} and ${pods.length - 3} more` : first;
}

/** The first part of a title: `NUMA node 0` of `NUMA node 0 · 64 GiB`; of two names for one box both. */
function shortTitle(title) {
  const parts = title.split(" · ").filter((part) => !/^[\d.]+ ?[KMGTP]?i?B$/.test(part));
  return parts.reverse().join(", ");
}
