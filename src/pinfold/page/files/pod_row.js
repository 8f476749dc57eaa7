/** A row of the list of pods: one pod, or several that are alike. */
import {parseCPUs} from "./cpusets.js";
import {counted, make} from "./dom.js";
import {podKey} from "./model.js";
import {swatch} from "./paints.js";

/**
 * @param {import("./alike.js").Row} row
 * @param {import("./model.js").SceneIndex} index
 * @param {string} target the pod that the row points at
 * @returns {HTMLElement}
 */
export function podRow(row, index, target) {
  const [pod] = row.pods;
  const many = row.pods.length > 1;
  const containers = pod.containers ?? [];
  const only = containers.length === 1 && pod.admitted && isPlain(containers[0]) ? containers[0] : null;
  const classes = ["pod", pod.admitted ? "" : "rejected", pod.ended && pod.admitted ? "ended" : ""].filter(
    Boolean,
  );
  const head = make(
    "button",
    {type: "button", class: "pod-head", "aria-pressed": "false"},
    pod.admitted ? null : make("span", {class: "cross", "aria-hidden": "true"}, "✗"),
    only ? signOf(only, index) : null,
    make(
      "span",
      {class: "pod-name"},
      make("span", {class: "namespace"}, `${pod.namespace}/`),
      many ? (sameOf(row.pods, (one) => one.workload) ?? `${pod.name} …`) : pod.name,
    ),
    many ? make("span", {class: "times"}, `× ${row.pods.length}`) : null,
    only ? make("span", {class: only.exclusive ? "cpus own" : "cpus"}, whereOf(only)) : null,
    make("span", {class: "word"}, pod.admitted ? pod.word : "rejected"),
  );
  const item = make("li", {class: classes.join(" "), "data-pod": target}, head);
  if (!pod.admitted || pod.reason) {
    item.append(
      make("p", {class: "reason"}, make("b", {}, pod.reason ?? ""), pod.message ? ` ${pod.message}` : ""),
    );
  }
  for (const one of pod.whole ?? []) item.append(make("p", {class: "extra"}, one));
  if (pod.admitted && containers.length && !only) {
    item.append(make("ul", {class: "containers"}, ...containers.map((one) => containerRow(one, index))));
  }
  if (many) item.append(allNames(row.pods));
  return item;
}

/** What all of them have alike; null where they differ. */
function sameOf(pods, of) {
  const first = of(pods[0]) ?? null;
  return pods.every((one) => (of(one) ?? null) === first) ? first : null;
}

/** Whether there is no more to say of a container than where it runs. */
function isPlain(one) {
  return !(one.extras ?? []).length && !one.kind && !(one.exclusive && one.remark);
}

/** The mark of its owner; else of the CPUs that it shares, which may be the reserved ones alone. */
function signOf(one, index) {
  const shared = () => parseCPUs(one.cpus).map((cpu) => index.cells.get(cpu)?.state);
  const painted =
    (one.owner ? index.owners.get(one.owner) : null) ??
    index.states.get("shared pool") ??
    shared().find(Boolean);
  return painted ? swatch(painted.paint) : make("span", {class: "swatch"});
}

function whereOf(one) {
  if (one.exclusive) return one.cpus;
  return one.remark || (one.cpus ? "shared" : "no CPUs");
}

function containerRow(one, index) {
  const count = one.exclusive ? parseCPUs(one.cpus).length : 0;
  return make(
    "li",
    {},
    signOf(one, index),
    make(
      "span",
      {class: "container-name"},
      one.name,
      one.kind ? make("span", {class: "kind"}, ` ${one.kind}`) : null,
    ),
    make("span", {class: one.exclusive ? "cpus own" : "cpus"}, whereOf(one)),
    make("span", {class: "count"}, count ? counted(count, "CPU") : ""),
    one.exclusive && one.remark ? make("span", {class: "extra"}, one.remark) : null,
    ...(one.extras ?? []).map((extra) => make("span", {class: "extra"}, extra)),
  );
}

function allNames(pods) {
  const name = sameOf(pods, (pod) => pod.namespace) === null ? podKey : (pod) => pod.name;
  const shown = pods.slice(0, 100).map((pod) => make("li", {}, name(pod)));
  if (pods.length > shown.length) shown.push(make("li", {}, `and ${pods.length - shown.length} more`));
  return make("details", {class: "names"}, make("summary", {}, "their names"), make("ul", {}, ...shown));
}
