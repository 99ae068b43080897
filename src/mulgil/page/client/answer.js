import { MulgilError, StreamFailedError } from "./errors.js";
/**
 * An answer that is arriving: read it with `for await`, or wait for `result()`.
 *
 * Leaving the loop early stops the generation.
 */
export class ChatStream {
    text = "";
    reasoning = "";
    finishReason = null;
    usage = null;
    #source;
    #callbacks;
    #status = "completed";
    #taken = false;
    constructor(source, callbacks) {
        this.#source = source;
        this.#callbacks = callbacks;
    }
    async *[Symbol.asyncIterator]() {
        if (this.#taken)
            throw new MulgilError({ message: "This stream is being read already." });
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
        }
        finally {
            // Whoever leaves the loop early leaves here; where the source has ended this does nothing.
            await this.#source.return("cancelled");
        }
    }
    /** The whole answer, when it is there. */
    async result() {
        for await (const _ of this)
            ;
        const { text, reasoning, finishReason, usage } = this;
        return { text, reasoning, finishReason, usage, status: this.#status };
    }
    *#deltas(chunk) {
        if (chunk.usage)
            this.usage = chunk.usage;
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
export function chunkOf(data) {
    let payload;
    try {
        payload = JSON.parse(data);
    }
    catch (cause) {
        throw new StreamFailedError({ message: "The server sent an event that is not JSON.", code: "invalid_event" }, { cause });
    }
    if (payload.error)
        throw new StreamFailedError(payload.error);
    return { ...payload, choices: payload.choices ?? [] };
}
/**
 * How a stream ended, by the data of its event `done`.
 *
 * @throws StreamFailedError - the answer failed, and the event that said why was missed.
 */
export function endingOf(data) {
    const { status } = JSON.parse(data);
    if (status === "failed")
        throw new StreamFailedError({ message: "The answer failed.", code: "stream_failed" });
    return status === "cancelled" ? "cancelled" : "completed";
}
