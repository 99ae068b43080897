"""Reads slow streams full of comments, with ids and without, in every pacing. Prints the texts by name."""

import json
import sys

import openai

told = json.loads(sys.argv[1])
client = openai.OpenAI(
    base_url=f"{told['gateway']}/v1", api_key=told["key"], max_retries=0, _strict_response_validation=True
)
texts = {}
for name, options in told["options"].items():
    for accept in ("application/json", "text/event-stream"):
        stream = client.chat.completions.create(
            model=told["model"],
            messages=[{"role": "user", "content": told["prompt"]}],
            stream=True,
            stream_options=options,
            extra_headers={"accept": accept},
        )
        chunks = [chunk for chunk in stream if chunk.choices]
        texts[f"{name}, {accept}"] = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
sys.stdout.write(json.dumps(texts))
