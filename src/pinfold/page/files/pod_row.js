/** A row of the list of pods: one pod, or several that are alike. */
import {parseCPUs} from "./cpusets.js";
import {counted, make} from "./dom.js";
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
  const classes = ["pod", pod.admitted ? "" : "refused", pod.ended && pod.admitted ? "ended" : ""].filter(
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
      many ? (pod.workload ?? `${pod.name} …`) : pod.name,
    ),
    many ? make("span", {class: "times"}, `× ${row.pods.length}`) : null,
    only ? make("span", {class: only.exclusive ? "cpus own" : "cpus"}, whereOf(only)) : null,
    make("span", {class: "word"}, pod.admitted ? pod.word : "refused"),
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

/** Whether there is no more to say of a container than where it runs. */
function isPlain(one) {
  return !(one.extras ?? []).length && !one.kind && !(one.exclusive && one.remark);
}

function signOf(one, index) {
  const painted = (one.owner ? index.owners.get(one.owner) : null) ?? index.states.get("shared pool");
  return painted ? swatch(painted.paint) : make("span", {class: "swatch"});
}

function whereOf(one) {
  return one.exclusive || (one.cpus && !one.remark) ? one.cpus : one.remark || "no CPUs";
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
  const shown = pods.slice(0, 100).map((pod) => make("li", {}, pod.name));
  if (pods.length > shown.length) shown.push(make("li", {}, `and ${pods.length - shown.length} more`));
  return make("details", {class: "names"}, make("summary", {}, "their names"), make("ul", {}, ...shown));
}
