/** A turn's events from the server, handed over at most once per frame. */

const FRAME_BUDGET = 12; // milliseconds of a frame that may go to new events
const HIDDEN_PAUSE = 250;
const CALM_PAUSE = 400;
const LONGEST_WAIT = 5000; // milliseconds between two attempts to connect

const calm = matchMedia("(prefers-reduced-motion: reduce)");

export class TurnStream {
  #address;
  #watcher;
  #attempts;
  #source = null;
  #queue = [];
  #next = 0;
  #last = "";
  #ended = false;
  #failures = 0;
  #scheduled = false;
  #retry = 0;

  /**
   * @param {string} turnId the turn.
   * @param {object} watcher `receive(event, arrival)`, `paint()`, `over()`, `lost()` and `connection(up)`.
   * @param {number} attempts how often an answer that is no stream is taken before it is looked at why.
   */
  constructor(turnId, watcher, attempts) {
    this.#address = `turns/${encodeURIComponent(turnId)}/events?format=rxloop`;
    this.#watcher = watcher;
    this.#attempts = attempts;
    this.#connect();
    this.#schedule();
  }

  close() {
    this.#ended = true;
    clearTimeout(this.#retry);
    this.#source?.close();
  }

  /** Where what has not been seen is. */
  get #rest() {
    return this.#last ? `${this.#address}&after=${encodeURIComponent(this.#last)}` : this.#address;
  }

  #connect() {
    const source = new EventSource(this.#rest);
    this.#source = source;
    source.onopen = () => this.#watcher.connection(true);
    source.onmessage = (message) => {
      this.#failures = 0;
      if (message.lastEventId) this.#last = message.lastEventId;
      const event = JSON.parse(message.data);
      this.#queue.push([event, performance.now()]);
      if (event?.type === "turn_finished" || event?.type === "error") {
        this.#ended = true;
        source.close();
        this.#watcher.connection(true);
      }
      this.#schedule();
    };
    source.onerror = () => {
      if (this.#ended) return;
      this.#watcher.connection(false);
      // a broken connection the browser takes up again by itself, an answer that is no stream it does not
      if (source.readyState !== EventSource.CLOSED) return;
      this.#failures += 1;
      if (this.#failures >= this.#attempts) this.#judge();
      else this.#connectLater();
    };
  }

  #connectLater() {
    this.#retry = setTimeout(() => this.#connect(), Math.min(250 * 2 ** this.#failures, LONGEST_WAIT));
  }

  /** Give up what is not to be had; a server that is away, or has too much to do, comes back. */
  async #judge() {
    const gone = await fetch(this.#rest, { method: "HEAD" }).then(
      ({ status }) => status === 204 || (status >= 400 && status < 500 && status !== 429),
      () => false,
    );
    if (this.#ended) return;
    if (!gone) {
      this.#connectLater();
      return;
    }
    this.#ended = true;
    this.#watcher.connection(true);
    this.#watcher.lost();
  }

  #schedule() {
    if (this.#scheduled) return;
    this.#scheduled = true;
    // a page that nobody sees has no frames, but must not fall behind for ever
    if (document.hidden) setTimeout(this.#flush, HIDDEN_PAUSE);
    else requestAnimationFrame(this.#flush);
  }

  #flush = () => {
    this.#scheduled = false;
    const until = performance.now() + FRAME_BUDGET;
    while (this.#next < this.#queue.length) {
      const [event, arrival] = this.#queue[this.#next];
      this.#next += 1;
      try {
        this.#watcher.receive(event, arrival);
      } catch (error) {
        // what follows is shown all the same
        reportError(error);
      }
      if (this.#next % 32 === 0 && performance.now() > until) break;
    }
    const drained = this.#next >= this.#queue.length;
    if (drained) {
      this.#queue = [];
      this.#next = 0;
    }
    this.#watcher.paint();
    if (!drained) this.#schedule();
    else if (this.#ended) this.#watcher.over();
    // time passes between events too
    else if (calm.matches) setTimeout(() => this.#schedule(), CALM_PAUSE);
    else this.#schedule();
  };
}
