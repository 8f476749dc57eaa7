/** The keys of the page. */
import {make} from "./dom.js";
import {key} from "./panel.js";

const KEYS = [
  [["←", "→", "↑", "↓"], "walk over the CPUs of a map"],
  [["Home", "End"], "the first, and the last one"],
  [["Enter"], "pin what is pointed at: who has it, and why, stays in sight"],
  [["Esc"], "release it, empty the filter, or go back to now"],
  [["/"], "filter the pods: a name, a namespace, a CPU such as 17, numa:0, socket:1"],
  [["[", "]"], "what happened before, and what happened next"],
  [["n"], "back to now"],
  [["u"], "show or hide how busy CPUs are"],
  [["?"], "these keys"],
];

/** @returns {HTMLDialogElement} */
export function helpDialog() {
  const close = make("button", { type: "button", class: "close", "aria-label": "Close" }, "×");
  const dialog = make(
    "dialog",
    { class: "help", "aria-label": "Keys" },
    make("h2", {}, "Keys"),
    make("dl", {}, ...KEYS.flatMap(([keys, words]) => [make("dt", {}, ...keys.map(key)), make("dd", {}, words)])),
    make("p", { class: "hint" }, "Bars in the cells show how busy each CPU was in the last second. An outline marks what a comparison is about."),
    close,
  );
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  return dialog;
}
