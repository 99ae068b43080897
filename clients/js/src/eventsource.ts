import { ChatStream, chunkOf, endingOf, type Callbacks, type Chunk, type Ending } from "./answer.js";
import { Caller, chatBody, type ChatOptions } from "./chat.js";
import { ConnectionLostError, errorOf } from "./errors.js";
import { BrokenLine, unlessAborted } from "./line.js";

/** The address of a stream, with its ticket: `/stream?q=…&ticket=…`, or one of `POST /v1/streams`. */
export interface AddressOptions extends Callbacks {
  url: string;
  signal?: AbortSignal | undefined;
}

export type EventSourceOptions = AddressOptions | Omit<ChatOptions, "resume" | "silence" | "reconnect">;

/**
 * Answer a conversation through the browser's own EventSource, which reconnects by itself.
 *
 * With a `url` it needs no key: have your server mint the ticket. With a `key` it makes the stream and its ticket first.
 */
export function eventSourceChat(options: EventSourceOptions): ChatStream {
  return new ChatStream(chunks(options), options);
}

async function* chunks(options: EventSourceOptions): AsyncGenerator<Chunk, Ending> {
  const { url, stop } = "url" in options ? { url: options.url, stop: () => {} } : await create(options);
  const queue = new Queue();
  const source = new EventSource(url);
  listen(source, queue, options);
  const abort = () => queue.end(options.signal?.reason);
  options.signal?.addEventListener("abort", abort);
  if (options.signal?.aborted) abort();
  let whole = false;
  try {
    const status = yield* queue.items();
    whole = true;
    return status;
  } finally {
    source.close();
    options.signal?.removeEventListener("abort", abort);
    if (!whole) stop();
  }
}

async function create(options: Exclude<EventSourceOptions, AddressOptions>): Promise<{ url: string; stop: () => void }> {
  const caller = new Caller(options);
  const request = { method: "POST", body: chatBody(options, false) };
  let response: Response;
  try {
    response = await unlessAborted(caller.call("/streams", request, "application/json"), options.signal);
  } catch (error) {
    throw error instanceof BrokenLine ? new ConnectionLostError(error.message, null, { cause: error }) : error;
  }
  if (!response.ok) throw await errorOf(response);
  const { id, ticket } = (await response.json()) as { id: string; ticket: string };
  const url = caller.url(`/streams/${id}?ticket=${encodeURIComponent(ticket)}`);
  return { url, stop: () => caller.stop(id) };
}

function listen(source: EventSource, queue: Queue, callbacks: Callbacks): void {
  let attempt = 0;
  source.onopen = () => {
    if (attempt > 0) callbacks.onResumed?.();
    attempt = 0;
  };
  source.onmessage = ({ data }) => {
    try {
      if (data !== "[DONE]") queue.add(chunkOf(data));
    } catch (error) {
      queue.end(error);
    }
  };
  source.addEventListener("done", ({ data }) => {
    try {
      queue.end(undefined, endingOf(data));
    } catch (error) {
      queue.end(error);
    }
  });
  source.onerror = (cause) => {
    // EventSource tells neither status nor reason; it gives up on any status but 200.
    if (source.readyState === EventSource.CLOSED) {
      queue.end(new ConnectionLostError("The server did not take the connection.", null));
    } else {
      callbacks.onReconnect?.({ attempt: ++attempt, delay: 0, cause });
    }
  };
}

/** What was pushed, for a reader that pulls. */
class Queue {
  readonly #chunks: Chunk[] = [];
  #ended: { error: unknown; status: Ending | null } | null = null;
  #wake = () => {};

  add(chunk: Chunk): void {
    this.#chunks.push(chunk);
    this.#wake();
  }

  end(error: unknown, status: Ending | null = null): void {
    this.#ended ??= { error, status };
    this.#wake();
  }

  async *items(): AsyncGenerator<Chunk, Ending> {
    for (;;) {
      while (this.#chunks.length > 0) yield this.#chunks.shift() as Chunk;
      if (this.#ended) {
        if (this.#ended.status) return this.#ended.status;
        throw this.#ended.error;
      }
      await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }
}
