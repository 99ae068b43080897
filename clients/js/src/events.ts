/** One server-sent event. */
export interface ServerEvent {
  /** `message` unless the server named it. */
  type: string;
  data: string;
  /** The last id that the server has sent, with this event or an earlier one; empty before the first. */
  id: string;
}

/**
 * Makes events of bytes, wherever the network has cut them: inside a character, inside a line, inside CR LF.
 *
 * It follows the standard for EventSource: an event counts when its blank line has arrived, and so does its id.
 */
export class EventParser {
  // A fatal decoder would throw away a whole answer for one bad byte; U+FFFD is what browsers show.
  readonly #decoder = new TextDecoder();
  #line = "";
  #afterCarriageReturn = false;
  #type = "";
  #data: string[] = [];
  #id = "";
  #committedId = "";

  /** The events that these bytes complete. */
  push(bytes: Uint8Array): ServerEvent[] {
    return this.#read(this.#decoder.decode(bytes, { stream: true }));
  }

  #read(text: string): ServerEvent[] {
    const events: ServerEvent[] = [];
    let start = 0;
    for (let at = 0; at < text.length; at++) {
      const character = text.charCodeAt(at);
      if (character !== LINE_FEED && character !== CARRIAGE_RETURN) {
        this.#afterCarriageReturn = false;
        continue;
      }
      if (character === LINE_FEED && this.#afterCarriageReturn) {
        this.#afterCarriageReturn = false;
        start = at + 1;
        continue;
      }
      this.#afterCarriageReturn = character === CARRIAGE_RETURN;
      const line = this.#line + text.slice(start, at);
      this.#line = "";
      start = at + 1;
      const event = this.#take(line);
      if (event) events.push(event);
    }
    // Only what is new is looked at, so that a long line in small pieces costs no more than in one.
    this.#line += text.slice(start);
    return events;
  }

  #take(line: string): ServerEvent | null {
    if (line === "") return this.#dispatch();
    const colon = line.indexOf(":");
    if (colon === 0) return null;
    const field = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    if (field === "data") this.#data.push(value);
    else if (field === "event") this.#type = value;
    else if (field === "id" && !value.includes("\0")) this.#id = value;
    return null;
  }

  #dispatch(): ServerEvent | null {
    this.#committedId = this.#id;
    const event =
      this.#data.length > 0
        ? { type: this.#type || "message", data: this.#data.join("\n"), id: this.#committedId }
        : null;
    this.#type = "";
    this.#data = [];
    return event;
  }
}

const LINE_FEED = 10;
const CARRIAGE_RETURN = 13;
