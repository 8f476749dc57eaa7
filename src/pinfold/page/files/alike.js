/**
 * Which pods are told in one row: replicas of a workload of which none has a CPU, or anything else, of its own, and
 * those that were rejected with the same words, whosever they are.
 */
import {podKey} from "./model.js";

const FEW = 12; // so many rows are read sooner than they are opened

/**
 * @typedef {{key: string, pods: object[]}} Row one pod, or several that are alike
 */

/**
 * @param {object[]} pods
 * @returns {Row[]} in the order of the first pod of each
 */
export function rowsOf(pods) {
  if (pods.length <= FEW) return pods.map((pod) => ({key: uidOf(pod), pods: [pod]}));
  const rows = new Map();
  for (const pod of pods) {
    const key = kindOf(pod) ?? uidOf(pod);
    const row = rows.get(key);
    if (row) row.pods.push(pod);
    else rows.set(key, {key, pods: [pod]});
  }
  return [...rows.values()];
}

function uidOf(pod) {
  return pod.uid || podKey(pod);
}

/** What makes it one of many; null where it has something of its own. */
function kindOf(pod) {
  if (!pod.admitted) return JSON.stringify([pod.reason ?? "", pod.message ?? ""]);
  const containers = pod.containers ?? [];
  if (!pod.workload || (pod.whole ?? []).length) return null;
  if (containers.some((one) => one.exclusive || one.owner || (one.extras ?? []).length)) return null;
  return JSON.stringify([
    pod.namespace,
    pod.workload,
    pod.word,
    pod.ended ?? false,
    pod.reason ?? "",
    pod.message ?? "",
    containers.map((one) => [one.name, one.kind ?? "", one.remark ?? ""]),
  ]);
}
