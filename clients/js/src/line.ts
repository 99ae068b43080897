import { EventParser, type ServerEvent } from "./events.js";

/** The line broke, or went silent. Told from what a reader of the events does wrong. */
export class BrokenLine extends Error {
  override name = "BrokenLine";
}

/**
 * The events of a response, as they arrive.
 *
 * @param silence - milliseconds without a byte after which the line counts as broken; 0 for never.
 * @throws BrokenLine - the line broke. A body that ends is no broken line: its reader knows whether it was whole.
 */
export async function* eventsOf(response: Response, silence: number): AsyncGenerator<ServerEvent> {
  if (!response.body) return;
  const reader = response.body.getReader();
  const parser = new EventParser();
  try {
    for (;;) {
      const bytes = await read(reader, silence);
      if (bytes === null) return;
      yield* parser.push(bytes);
    }
  } finally {
    // Not waited for: a line that is broken may never say that it is closed.
    reader.cancel().catch(() => {});
  }
}

async function read(reader: ReadableStreamDefaultReader<Uint8Array>, silence: number): Promise<Uint8Array | null> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const silent = new Promise<never>((_, reject) => {
    if (silence > 0) timer = setTimeout(() => reject(new BrokenLine(`Nothing arrived for ${silence} ms.`)), silence);
  });
  try {
    const { done, value } = await Promise.race([reader.read(), silent]);
    return done ? null : value;
  } catch (cause) {
    throw cause instanceof BrokenLine ? cause : new BrokenLine("The connection broke.", { cause });
  } finally {
    clearTimeout(timer);
  }
}

/** Wait; rejects with the signal's reason at once when it is aborted. */
export function sleep(milliseconds: number, signal: AbortSignal | undefined): Promise<void> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const over = new Promise<void>((resolve) => (timer = setTimeout(resolve, milliseconds)));
  return unlessAborted(over, signal).finally(() => clearTimeout(timer));
}

/** The promise's outcome, or the signal's reason if it is aborted first. */
export function unlessAborted<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (!signal) return promise;
  return new Promise((resolve, reject) => {
    const abort = () => reject(signal.reason);
    if (signal.aborted) abort();
    signal.addEventListener("abort", abort);
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", abort));
  });
}

/** Milliseconds before try number `attempt`: doubled each time up to `longest`, and spread, so that not all come at once. */
export function backOff(attempt: number, first: number, longest: number): number {
  return Math.min(longest, first * 2 ** (attempt - 1)) * (0.5 + Math.random() / 2);
}
