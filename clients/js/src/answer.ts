import { MulgilError, StreamFailedError, type ErrorBody } from "./errors.js";

/** Token counts, as the engine has them. */
export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  [detail: string]: unknown;
}

/** A `chat.completion.chunk`, as it came. */
export interface Chunk {
  id: string;
  model: string;
  choices: {
    index: number;
    delta: { role?: string; content?: string | null; reasoning_content?: string | null; tool_calls?: ToolCallDelta[] };
    finish_reason: string | null;
  }[];
  usage?: Usage | null;
  [field: string]: unknown;
}

/** A piece of a tool call: `arguments` of one index belong together. */
export interface ToolCallDelta {
  index: number;
  id?: string;
  type?: string;
  function?: { name?: string; arguments?: string };
}

/** What is new. */
export interface ChatDelta {
  /** Which of `n` answers. */
  index: number;
  text: string;
  reasoning: string;
  toolCalls: ToolCallDelta[];
  finishReason: string | null;
  chunk: Chunk;
}

/** A whole answer. Texts and the finish reason are those of the first choice. */
export interface ChatResult {
  text: string;
  reasoning: string;
  finishReason: string | null;
  /** Null where it was not asked for. */
  usage: Usage | null;
  /** `cancelled`: somebody stopped the stream; what is there is its beginning. */
  status: "completed" | "cancelled";
}

/** Takes callbacks instead of, or beside, `for await`. */
export interface Callbacks {
  onDelta?: ((delta: ChatDelta) => void) | undefined;
  /** The line broke; another one is tried after `delay` milliseconds. */
  onReconnect?: ((event: Reconnect) => void) | undefined;
  /** The line stands again, and the answer goes on. */
  onResumed?: (() => void) | undefined;
}

export interface Reconnect {
  /** 1 for the first try after the last event that arrived. */
  attempt: number;
  delay: number;
  cause: unknown;
}

/** The status with which a source of chunks ends. */
export type Ending = ChatResult["status"];

/**
 * An answer that is arriving: read it with `for await`, or wait for `result()`.
 *
 * Leaving the loop early stops the generation.
 */
export class ChatStream implements AsyncIterable<ChatDelta> {
  text = "";
  reasoning = "";
  finishReason: string | null = null;
  usage: Usage | null = null;
  readonly #source: AsyncGenerator<Chunk, Ending>;
  readonly #callbacks: Callbacks;
  #status: Ending = "completed";
  #taken = false;

  constructor(source: AsyncGenerator<Chunk, Ending>, callbacks: Callbacks) {
    this.#source = source;
    this.#callbacks = callbacks;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<ChatDelta> {
    if (this.#taken) throw new MulgilError({ message: "This stream is being read already." });
    this.#taken = true;
    try {
      for (;;) {
        const next = await this.#source.next();
        if (next.done) {
          this.#status = next.value;
          return;
        }
        for (const delta of this.#deltas(next.value)) {
          this.#callbacks.onDelta?.(delta);
          yield delta;
        }
      }
    } finally {
      // Whoever leaves the loop early leaves here; where the source has ended this does nothing.
      await this.#source.return("cancelled");
    }
  }

  /** The whole answer, when it is there. */
  async result(): Promise<ChatResult> {
    for await (const _ of this);
    const { text, reasoning, finishReason, usage } = this;
    return { text, reasoning, finishReason, usage, status: this.#status };
  }

  *#deltas(chunk: Chunk): Generator<ChatDelta> {
    if (chunk.usage) this.usage = chunk.usage;
    for (const { index, delta, finish_reason } of chunk.choices) {
      const text = delta.content ?? "";
      const reasoning = delta.reasoning_content ?? "";
      if (index === 0) {
        this.text += text;
        this.reasoning += reasoning;
        this.finishReason = finish_reason ?? this.finishReason;
      }
      yield { index, text, reasoning, toolCalls: delta.tool_calls ?? [], finishReason: finish_reason, chunk };
    }
  }
}

/**
 * The chunk of an event's data.
 *
 * @throws StreamFailedError - it says that the answer failed, or it is no JSON.
 */
export function chunkOf(data: string): Chunk {
  let payload: { error?: ErrorBody } & Chunk;
  try {
    payload = JSON.parse(data);
  } catch (cause) {
    throw new StreamFailedError({ message: "The server sent an event that is not JSON.", code: "invalid_event" }, { cause });
  }
  if (payload.error) throw new StreamFailedError(payload.error);
  return { ...payload, choices: payload.choices ?? [] };
}

/**
 * How a stream ended, by the data of its event `done`.
 *
 * @throws StreamFailedError - the answer failed, and the event that said why was missed.
 */
export function endingOf(data: string): Ending {
  const { status } = JSON.parse(data) as { status: string };
  if (status === "failed") throw new StreamFailedError({ message: "The answer failed.", code: "stream_failed" });
  return status === "cancelled" ? "cancelled" : "completed";
}
