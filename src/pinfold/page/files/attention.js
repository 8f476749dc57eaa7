/**
 * What somebody points at, and what is pinned.
 *
 * A target is `{scene, cpu, owner, state, pod}` with those keys that are known: `scene` the index of the view, `owner`
 * the key of one, `state` its word, `pod` `namespace/name`. What is pinned goes before what is pointed at.
 */
export class Attention {
  constructor() {
    this.pointed = null;
    this.pinned = null;
    /** @type {((target: object|null) => void)[]} */
    this.listeners = [];
    this.told = null;
  }

  get target() {
    return this.pinned ?? this.pointed;
  }

  /** @param {object|null} target */
  point(target) {
    this.pointed = target;
    this.tell();
  }

  /** Pins a target, or releases it where it is pinned already. */
  pin(target) {
    this.pinned = JSON.stringify(target) === JSON.stringify(this.pinned) ? null : target;
    this.tell();
  }

  /** Releases what is pinned; whether there was something. */
  release() {
    const was = this.pinned !== null;
    this.pinned = this.pointed = null;
    this.tell();
    return was;
  }

  /** Tells all listeners again, such as after a scene has changed. */
  tell(always = false) {
    const told = JSON.stringify([this.target, this.pinned !== null]);
    if (told === this.told && !always) return;
    this.told = told;
    for (const listener of this.listeners) listener(this.target);
  }
}
