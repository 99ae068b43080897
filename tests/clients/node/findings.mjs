// What a client's program found out, as one JSON object: each check's value, or what it raised.

// Where the gateways are and what to call their keys and models, as the test says.
export const told = JSON.parse(process.argv[2]);

// Runs the checks side by side, so that one that waits delays no other, and none that fails hides another.
export async function report(checks) {
  const names = Object.keys(checks);
  const outcomes = await Promise.all(names.map((name) => outcome(checks[name])));
  process.stdout.write(JSON.stringify(Object.fromEntries(names.map((name, index) => [name, outcomes[index]]))));
}

async function outcome(check) {
  try {
    return { value: (await check()) ?? null };
  } catch (error) {
    return raised(error);
  }
}

export function raised(error) {
  return {
    raised: error.constructor.name,
    status: error.status ?? error.statusCode ?? null,
    code: error.code ?? null,
    param: error.param ?? null,
    type: error.type ?? null,
    request_id: error.requestID ?? null,
    message: String(error.message).slice(0, 500),
    traceback: String(error.stack),
  };
}

// How many generations the gateway that nobody else uses is at.
export async function running() {
  return (await (await fetch(`${told.quiet}/health`)).json()).running;
}

// Waits, for two seconds at most, until it is at none.
export async function idle() {
  const until = Date.now() + 2000;
  while ((await running()) && Date.now() < until) await new Promise((resolve) => setTimeout(resolve, 20));
  return running();
}
