/** Which pods are listed, and in which order. */
import {parseCPUs} from "./cpusets.js";
import {podKey} from "./model.js";

/** The orders of the list, by what they are called. */
export const ORDERS = {
  "as placed": null,
  name: (one, other) => one.name.localeCompare(other.name) || one.namespace.localeCompare(other.namespace),
  namespace: (one, other) => podKey(one).localeCompare(podKey(other)),
  "most CPUs": (one, other, index) => owned(other, index).length - owned(one, index).length,
  "first CPU": (one, other, index) => (owned(one, index)[0] ?? 1e9) - (owned(other, index)[0] ?? 1e9),
};

function owned(pod, index) {
  return (index.ownersOfPod.get(podKey(pod)) ?? [])
    .flatMap((owner) => parseCPUs(owner.cpus))
    .sort((a, b) => a - b);
}

/**
 * The pods for which every word of a filter is true. A number is a CPU, `numa:1` and `socket:0` are boxes of the map;
 * anything else is a part of a name, of a workload, of a container, of a phase, or of a reason.
 * @param {object[]} pods
 * @param {string} filter
 * @param {import("./model.js").SceneIndex} index
 */
export function sifted(pods, filter, index) {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return pods;
  const tests = words.map((word) => testOf(word, index));
  return pods.filter((pod) => tests.every((test) => test(pod)));
}

function testOf(word, index) {
  if (/^\d+$/.test(word)) {
    const cpu = Number(word);
    if (index.places.has(cpu)) return (pod) => index.cpusOfPod(pod).has(cpu) || textOf(pod).includes(word);
  }
  const box = /^(numa|socket|l3):(\d+)$/.exec(word);
  if (box) {
    const title = {numa: "NUMA node", socket: "Socket", l3: "L3"}[box[1]] + ` ${box[2]}`;
    const inside = new Set();
    for (const [cpu, place] of index.places) {
      if (place.path.some((one) => one.split(" · ").includes(title))) inside.add(cpu);
    }
    return (pod) => owned(pod, index).some((cpu) => inside.has(cpu));
  }
  return (pod) => textOf(pod).includes(word);
}

function textOf(pod) {
  const containers = (pod.containers ?? []).flatMap((one) => [
    one.name,
    one.remark ?? "",
    ...(one.extras ?? []),
  ]);
  const words = [
    podKey(pod),
    pod.workload ?? "",
    pod.word,
    pod.reason ?? "",
    pod.admitted ? "" : "rejected",
    ...containers,
  ];
  return words.join(" ").toLowerCase();
}

/**
 * Those that were rejected first, then in an order.
 * @param {object[]} pods
 * @param {string} order a key of ORDERS
 * @param {import("./model.js").SceneIndex} index
 */
export function sorted(pods, order, index) {
  const compare = ORDERS[order];
  const rank = (pod) => (pod.admitted ? (pod.ended ? 2 : 1) : 0);
  const places = new Map(pods.map((pod, at) => [pod, at]));
  return [...pods].sort(
    (one, other) =>
      rank(one) - rank(other) ||
      (compare ? compare(one, other, index) : 0) ||
      places.get(one) - places.get(other),
  );
}
