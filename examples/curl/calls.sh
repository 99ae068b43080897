#!/usr/bin/env bash
# The API by hand: models, a chat, a stream, and what an error looks like. Needs: curl.
set -euo pipefail

url=${MULGIL_BASE_URL:-http://127.0.0.1:8000/v1}
key=${MULGIL_API_KEY:-the key that scripts/serve printed}
model=${MULGIL_MODEL:-smollm2-135m-instruct}

# --fail-with-body: print the error, and exit with a status that is not 0.
call() { curl --silent --show-error --fail-with-body --header "Authorization: Bearer $key" "$@"; }

echo "# models"
call "$url/models"

echo; echo "# chat"
call "$url/chat/completions" --json '{
  "model": "'"$model"'",
  "messages": [{"role": "user", "content": "What is the capital of France?"}],
  "max_completion_tokens": 50
}'

echo; echo "# stream (--no-buffer: print each token when it comes); it is whole if it ends with [DONE]"
call --no-buffer "$url/chat/completions" --json '{
  "model": "'"$model"'",
  "messages": [{"role": "user", "content": "Tell me about rivers."}],
  "max_completion_tokens": 20,
  "stream": true
}'

echo "# an error: \"param\" is the field, \"code\" is for programs, x-request-id is for the operator"
refusal=$(curl --silent --show-error --include --header "Authorization: Bearer $key" "$url/chat/completions" --json '{
  "model": "'"$model"'",
  "messages": [{"role": "user", "content": "Hello"}],
  "temperature": 9
}')
echo "$refusal"
grep --quiet "^HTTP/1.1 422" <<< "$refusal"
