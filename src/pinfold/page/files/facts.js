/** What a scene says in a line each: sets of CPUs, quotas, resizes. */
import {make} from "./dom.js";

/** A line on a set of CPUs, for a list of descriptions. */
export function factOf(fact) {
  return make(
    "div",
    {},
    make("dt", {}, fact.name),
    make(
      "dd",
      {},
      make("span", {class: /^[\d,-]+$/.test(fact.value) ? "value cpus-of" : "value"}, fact.value),
      fact.remark ? make("span", {class: "remark"}, fact.remark) : null,
    ),
  );
}
