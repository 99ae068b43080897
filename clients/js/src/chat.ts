import { ChatStream, chunkOf, endingOf, type Callbacks, type Chunk, type Ending } from "./answer.js";
import { ConnectionLostError, errorOf, StatusError, type StreamPosition } from "./errors.js";
import { backOff, BrokenLine, eventsOf, sleep, unlessAborted } from "./line.js";

/** Where the gateway is, and how to call it. */
export interface Connection extends Callbacks {
  /** Default: `/v1`, the page's own origin. */
  baseUrl?: string | undefined;
  /** The API key. Whoever opens a page has the key in it: give such a key a tier with small limits. */
  key?: string | undefined;
  /** Stops reading, and the generation. */
  signal?: AbortSignal | undefined;
  /** Milliseconds without a byte after which the line counts as broken. The gateway says something every 15 s. */
  silence?: number | undefined;
  fetch?: typeof fetch | undefined;
  /** How to go on after a broken line. */
  reconnect?: ReconnectRules | undefined;
}

export interface ReconnectRules {
  /** Tries without anything new in between; default 8. */
  attempts?: number | undefined;
  /** Milliseconds before the first one, doubled for each further one; default 250. */
  firstDelay?: number | undefined;
  /** The longest wait in milliseconds, unless the gateway asks for more; default 8000. */
  longestDelay?: number | undefined;
}

export interface Message {
  role: "system" | "developer" | "user" | "assistant" | "tool";
  content: unknown;
  [field: string]: unknown;
}

export interface ChatOptions extends Connection {
  model: string;
  messages: Message[];
  /** Any other field of the request: `temperature`, `max_tokens`, `tools`, … */
  parameters?: Record<string, unknown> | undefined;
  /** Have the gateway keep the stream, and go on exactly where a broken line left off. */
  resume?: boolean | undefined;
}

/**
 * Answer a conversation, piece by piece.
 *
 * Reading it throws a `StatusError` (`AuthenticationError`, `ValidationError`, `RateLimitError`, `UnavailableError`, …)
 * where the gateway refuses, a `StreamFailedError` where the answer fails, a `ConnectionLostError` where the line
 * breaks for good, and the signal's reason where it is aborted.
 */
export function streamChat(options: ChatOptions): ChatStream {
  const follower = new Follower(options);
  return new ChatStream(follower.chunks(() => post(follower, options)), options);
}

/** Read a kept stream: one that another page started, or one whose line broke (`ConnectionLostError.resumable`). */
export function followStream(options: Connection & { position: StreamPosition }): ChatStream {
  const follower = new Follower(options, options.position);
  return new ChatStream(follower.chunks(() => follower.reopen()), options);
}

/** The body of a chat that is streamed with its usage. */
export function chatBody(options: Pick<ChatOptions, "model" | "messages" | "parameters">, resumable: boolean): string {
  return JSON.stringify({
    ...options.parameters,
    model: options.model,
    messages: options.messages,
    stream: true,
    stream_options: {
      include_usage: true,
      ...(options.parameters?.["stream_options"] as object | undefined),
      ...(resumable ? { resumable: true } : {}),
    },
  });
}

/** Calls the gateway. */
export class Caller {
  readonly #fetch: typeof fetch;
  readonly #base: string;
  readonly #key: string | undefined;

  constructor(connection: Connection) {
    // A browser's fetch wants to be called on its window.
    this.#fetch = connection.fetch ?? ((...request) => globalThis.fetch(...request));
    this.#base = (connection.baseUrl ?? "/v1").replace(/\/+$/, "");
    this.#key = connection.key;
  }

  url(path: string): string {
    return this.#base + path;
  }

  /** @throws BrokenLine - there was no answer. */
  async call(path: string, request: RequestInit, accept = "text/event-stream"): Promise<Response> {
    const headers = new Headers({ accept });
    if (this.#key) headers.set("authorization", `Bearer ${this.#key}`);
    if (request.body) headers.set("content-type", "application/json");
    try {
      return await this.#fetch(this.url(path), { ...request, headers, cache: "no-store" });
    } catch (cause) {
      throw new BrokenLine("The server could not be reached.", { cause });
    }
  }

  /** Stop a kept stream, also when the page is being closed. */
  stop(id: string): void {
    this.call(`/streams/${id}`, { method: "DELETE", keepalive: true }).catch(() => {});
  }
}

/** A response, and how to hang up on it. */
interface Line {
  response: Response;
  close: () => void;
}

/** Follows one stream over as many lines as it takes. */
class Follower {
  readonly caller: Caller;
  readonly signal: AbortSignal | undefined;
  readonly #options: Connection;
  #position: StreamPosition | null;
  #attempts = 0;

  constructor(options: Connection, position: StreamPosition | null = null) {
    this.caller = new Caller(options);
    this.signal = options.signal;
    this.#options = options;
    this.#position = position;
  }

  /** The gateway keeps this stream. */
  kept(id: string): void {
    this.#position = { id };
  }

  async *chunks(open: () => Promise<Line | null>): AsyncGenerator<Chunk, Ending> {
    let abandoned = true;
    try {
      let line = await this.#opened(open);
      while (line) {
        const cause = yield* this.#read(line);
        if (typeof cause === "string") {
          abandoned = false;
          return cause;
        }
        line = await this.reopen(cause);
      }
      abandoned = false;
      return "completed";
    } catch (error) {
      abandoned = this.signal?.aborted ?? false;
      if (abandoned) throw this.signal?.reason;
      throw error instanceof BrokenLine ? this.#lost(error) : error;
    } finally {
      // A kept stream goes on without readers; one that nobody wants is stopped.
      if (abandoned && this.#position) this.caller.stop(this.#position.id);
    }
  }

  /**
   * A new line to where the last one broke; null if there is nothing left to say.
   *
   * @throws StatusError - the stream is gone, or the key no longer good.
   * @throws BrokenLine - the line stays broken, or the server does not keep the stream.
   */
  async reopen(cause?: unknown): Promise<Line | null> {
    if (!this.#position) throw cause;
    const { attempts = 8, firstDelay = 250, longestDelay = 8_000 } = this.#options.reconnect ?? {};
    let problem = cause;
    while (this.#attempts < attempts) {
      if (problem !== undefined) {
        const attempt = ++this.#attempts;
        const asked = problem instanceof StatusError ? (problem.retryAfter ?? 0) * 1000 : 0;
        const delay = Math.max(asked, backOff(attempt, firstDelay, longestDelay));
        this.#options.onReconnect?.({ attempt, delay, cause: problem });
        await sleep(delay, this.signal);
      }
      const outcome = await this.#try(this.#position);
      if (outcome === null || !(outcome instanceof Error)) {
        if (cause !== undefined) this.#options.onResumed?.();
        return outcome;
      }
      problem = outcome;
    }
    throw problem instanceof BrokenLine ? problem : new BrokenLine("The stream could not be reached.", { cause: problem });
  }

  async #try({ id, offset }: StreamPosition): Promise<Line | null | Error> {
    const controller = new AbortController();
    try {
      const path = `/streams/${id}${offset ? `?offset=${offset}` : ""}`;
      const answer = this.caller.call(path, { signal: controller.signal });
      const response = await unlessAborted(answer, this.signal);
      if (response.status === 204) return null;
      if (response.ok) return { response, close: () => controller.abort() };
      const error = await errorOf(response);
      if (!error.retryable) throw error;
      return error;
    } catch (error) {
      if (error instanceof BrokenLine) return error;
      controller.abort();
      throw error;
    }
  }

  async #opened(open: () => Promise<Line | null>): Promise<Line | null> {
    try {
      return await open();
    } catch (error) {
      // Whether a request that was not answered is being worked on is unknown, so it is not sent again.
      throw error instanceof BrokenLine ? this.#lost(error) : error;
    }
  }

  /** The chunks of one line; returns how the stream ended, or why the line did. */
  async *#read({ response, close }: Line): AsyncGenerator<Chunk, Ending | BrokenLine> {
    const aborted = this.signal;
    aborted?.addEventListener("abort", close);
    try {
      if (aborted?.aborted) throw aborted.reason;
      for await (const { type, data, id } of eventsOf(response, this.#options.silence ?? 60_000)) {
        if (type === "done") return endingOf(data);
        if (data === "[DONE]") return "completed";
        const chunk = chunkOf(data);
        // Before it is handed on: whoever leaves while looking at it has it.
        if (this.#position && id && id !== this.#position.offset) {
          this.#position = { ...this.#position, offset: id };
          this.#attempts = 0;
        }
        yield chunk;
      }
      return new BrokenLine("The stream ended before the answer did.");
    } catch (error) {
      if (error instanceof BrokenLine && !aborted?.aborted) return error;
      throw error;
    } finally {
      aborted?.removeEventListener("abort", close);
      close();
    }
  }

  #lost(cause: BrokenLine): ConnectionLostError {
    return new ConnectionLostError(cause.message, this.#position, { cause });
  }
}

async function post(follower: Follower, options: ChatOptions): Promise<Line> {
  const { caller, signal } = follower;
  const line = new AbortController();
  const hangUp = () => line.abort();
  if (signal?.aborted) throw signal.reason;
  const body = chatBody(options, options.resume ?? false);
  const answer = caller.call("/chat/completions", { method: "POST", body, signal: line.signal });
  try {
    const response = await unlessAborted(answer, signal);
    if (!response.ok) throw await errorOf(response);
    const id = response.headers.get("x-mulgil-stream");
    if (id) follower.kept(id);
    return { response, close: hangUp };
  } catch (error) {
    if (!options.resume) hangUp();
    else leave(answer, caller, hangUp);
    throw error;
  }
}

/** Hang up; but if the gateway is just beginning to keep the stream, stop that as well. */
function leave(answer: Promise<Response>, caller: Caller, hangUp: () => void): void {
  const timer = setTimeout(hangUp, 1_000);
  answer
    .then((response) => {
      const id = response.headers.get("x-mulgil-stream");
      if (id) caller.stop(id);
    })
    .catch(() => {})
    .finally(() => {
      clearTimeout(timer);
      hangUp();
    });
}
