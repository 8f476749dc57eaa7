/** What a reader chooses, and finds again: light or dark, and whether the use of CPUs is drawn. */
import {make} from "./dom.js";

const SCHEMES = ["auto", "light", "dark"];
const SIGNS = {auto: "◐", light: "☀", dark: "☾"};

function recall(name, otherwise) {
  try {
    return localStorage.getItem(`pinfold-${name}`) ?? otherwise;
  } catch {
    return otherwise; // a browser that keeps nothing, such as of a file
  }
}

function remember(name, value) {
  try {
    localStorage.setItem(`pinfold-${name}`, value);
  } catch {
    // The same: it is chosen again the next time.
  }
}

/** A button that goes from the system's colours to light ones, to dark ones, and back. */
export function schemeSwitch() {
  const button = make("button", {type: "button", class: "icon"});
  let scheme = SCHEMES.find((one) => one === recall("scheme")) ?? "auto";
  const show = () => {
    document.documentElement.dataset.scheme = scheme;
    button.textContent = SIGNS[scheme];
    button.setAttribute("aria-label", `Colours: ${scheme === "auto" ? "as the system has them" : scheme}`);
    button.title = button.getAttribute("aria-label");
  };
  button.addEventListener("click", () => {
    scheme = SCHEMES[(SCHEMES.indexOf(scheme) + 1) % SCHEMES.length];
    remember("scheme", scheme);
    show();
  });
  show();
  return button;
}

/** A button that shows and hides how busy CPUs are. */
export function useSwitch() {
  const button = make("button", {type: "button", class: "use-switch"}, "CPU use");
  const show = (on) => {
    document.documentElement.classList.toggle("no-use", !on);
    button.setAttribute("aria-pressed", String(on));
  };
  button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") !== "true";
    remember("use", on ? "on" : "off");
    show(on);
  });
  show(recall("use", "on") !== "off");
  return button;
}
