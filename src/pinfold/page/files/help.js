/** The keys of the page. */
import {make} from "./dom.js";
import {keycap} from "./panel.js";

const KEYS = [
  [["←", "→", "↑", "↓"], "walk over the CPUs of a map"],
  [["Home", "End"], "the first, and the last one"],
  [["Enter"], "pin what is pointed at: who has it, and why, stays in sight"],
  [["Esc"], "release it, or empty the filter, or fold what happened"],
  [["/"], "filter the pods: a name, a namespace, a CPU such as 17, numa:0, socket:1"],
  [["?"], "these keys"],
];
const KEYS_OF_TIME = [
  [["[", "]"], "what happened before, and what happened next"],
  [["n"], "back to now"],
  [["u"], "show or hide how busy CPUs are"],
];
const OF_MARKS = "An outline marks what a comparison is about.";
const OF_USE =
  "Bars in the cells show how busy each CPU was, where the agent watches that (observationPeriod).";

/**
 * @param {boolean} live whether there is a past, and the use of CPUs
 * @returns {HTMLDialogElement}
 */
export function helpDialog(live) {
  const close = make("button", {type: "button", class: "close", "aria-label": "Close"}, "×");
  const dialog = make(
    "dialog",
    {class: "help", "aria-label": "Keys"},
    make("h2", {}, "Keys"),
    make(
      "dl",
      {},
      ...[...KEYS, ...(live ? KEYS_OF_TIME : [])].flatMap(([keys, words]) => [
        make("dt", {}, ...keys.map(keycap)),
        make("dd", {}, words),
      ]),
    ),
    make("p", {class: "hint"}, live ? OF_USE : OF_MARKS),
    close,
  );
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  return dialog;
}
