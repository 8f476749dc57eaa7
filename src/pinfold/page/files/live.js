/** The stream of events of `pinfold serve`, and what else it is asked for. */

const LONGEST = 20000; // milliseconds for an answer
const AGAIN = 3000; // milliseconds until a stream is opened again that the browser has given up

/**
 * Listens to `/v1/events` while the page is to be seen. A browser has six connections for all pages of one address: one
 * behind others leaves its own to them, and is told everything when it is shown again.
 */
export class Stream {
  /**
   * @param {Object<string, (text: string) => void>} hear by the kind of an event, such as `changed`: an Event as JSON
   * @param {(state: "connecting"|"connected"|"reconnecting"|"refused") => void} tell `connected` once it has told
   *   something
   */
  constructor(hear, tell) {
    this.hear = hear;
    this.tell = tell;
    this.source = null;
    this.later = 0;
    const follow = () => (document.hidden ? this.close() : this.open());
    document.addEventListener("visibilitychange", follow);
    follow();
  }

  open() {
    if (this.source) return;
    const source = new EventSource("/v1/events");
    this.source = source;
    let heard = false;
    // One that goes on may have nothing new to tell; a new one tells what there is, and is no word of it before.
    source.onopen = () => this.tell(heard ? "connected" : "connecting");
    source.onerror = () => {
      if (source.readyState === EventSource.CLOSED) this.failed(source);
      else this.tell("reconnecting");
    };
    for (const [kind, act] of Object.entries(this.hear)) {
      source.addEventListener(kind, (event) => {
        if (!heard) this.tell("connected");
        heard = true;
        act(event.data);
      });
    }
  }

  close() {
    clearTimeout(this.later);
    this.source?.close();
    this.source = null;
    this.tell("connecting");
  }

  /** A browser gives up where the answer is no stream: after a restart, or without a cookie. */
  async failed(source) {
    const state = await fetch("/v1/scene", {headers: {accept: "application/json"}})
      .then((answer) => (answer.status === 401 ? "refused" : "reconnecting"))
      .catch(() => "reconnecting");
    if (this.source !== source) return; // it was hidden meanwhile
    this.tell(state);
    this.later = setTimeout(() => {
      this.source = null;
      this.open();
    }, AGAIN);
  }
}

/**
 * What an address answers.
 * @param {string} path
 * @returns {Promise<any>}
 * @throws {Error} with the words of the answer
 */
export async function ask(path) {
  const signal = AbortSignal.timeout(LONGEST); // others may wait for this one
  const answer = await fetch(path, {headers: {accept: "application/json"}, signal});
  const told = await answer.json().catch(() => null);
  if (!answer.ok) throw new Error(told?.error?.message ?? `${answer.status} ${answer.statusText}`);
  return told;
}

/**
 * Has one thing done at a time; what is wanted meanwhile comes after it, and of that only what was wanted last.
 * @template T
 * @param {(wanted: T) => Promise<void>} act
 * @returns {(wanted: T) => void}
 */
export function oneAtATime(act) {
  let busy = false;
  /** @type {T[]} */
  let next = [];
  return async (wanted) => {
    next = [wanted];
    if (busy) return;
    busy = true;
    try {
      while (next.length) await act(next.pop());
    } finally {
      busy = false;
    }
  };
}

/**
 * The lines of `pinfold explain` about a pod, asked for once while it is as it is.
 * @returns {(pod: object) => Promise<string[]>}
 */
export function explainer() {
  /** @type {Map<string, Promise<string[]>>} */
  const known = new Map();
  return (pod) => {
    const key = JSON.stringify([
      pod.namespace,
      pod.name,
      pod.uid,
      pod.word,
      pod.reason ?? "",
      pod.containers?.map((one) => one.exclusive && one.cpus),
    ]);
    if (!known.has(key)) {
      const path = `/v1/explain/${encodeURIComponent(pod.namespace)}/${encodeURIComponent(pod.name)}`;
      const lines = ask(path).then((told) => told.lines);
      lines.catch(() => known.delete(key));
      known.set(key, lines);
      if (known.size > 500) known.delete(known.keys().next().value);
    }
    return known.get(key);
  };
}
