/** The stream of events of `pinfold serve`, and what else it is asked for. */

/**
 * Listens to `/v1/events` for as long as the page is open.
 * @param {Object<string, (text: string) => void>} hear by the kind of an event, such as `changed`: an Event as JSON
 * @param {(state: "connected"|"reconnecting"|"refused") => void} tell
 */
export function listen(hear, tell) {
  const source = new EventSource("/v1/events");
  source.onopen = () => tell("connected");
  source.onerror = () => {
    if (source.readyState !== EventSource.CLOSED) {
      tell("reconnecting");
      return;
    }
    // A browser gives up where the answer is no stream: after a restart, or without a cookie.
    fetch("/v1/scene", {headers: {accept: "application/json"}})
      .then((answer) => tell(answer.status === 401 ? "refused" : "reconnecting"))
      .catch(() => tell("reconnecting"))
      .finally(() => setTimeout(() => listen(hear, tell), 3000));
  };
  for (const [kind, act] of Object.entries(hear)) {
    source.addEventListener(kind, (event) => act(event.data));
  }
}

/**
 * What an address answers.
 * @param {string} path
 * @returns {Promise<any>}
 * @throws {Error} with the words of the answer
 */
export async function ask(path) {
  const answer = await fetch(path, {headers: {accept: "application/json"}});
  const told = await answer.json().catch(() => null);
  if (!answer.ok) throw new Error(told?.error?.message ?? `${answer.status} ${answer.statusText}`);
  return told;
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
