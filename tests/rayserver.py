"""Ray Serve in a Ray of its own, with a config as `serve deploy` takes it. Run by rayserving.py.

Answers questions, a line each, and ends when there are no more, with everything that it has started.
"""

import json
import sys
import time
from typing import Any

import ray
from ray import serve
from ray.serve._private.api import serve_start
from ray.serve.schema import ServeDeploySchema

APPLICATION = "mulgil"


def main() -> None:
    config = ServeDeploySchema.model_validate(json.loads(sys.argv[1]))
    # With "local" it starts a Ray on free ports, and ends no other one.
    ray.init(address="local", num_cpus=16, include_dashboard=False, namespace="serve")
    client = serve_start(http_options=config.http_options.model_dump())
    client.deploy_apps(config, _blocking=False)
    say(deployed())
    for line in sys.stdin:
        if line.strip() == "delete":
            serve.delete(APPLICATION)
            say("deleted")
        else:
            say(states())
    serve.shutdown()
    ray.shutdown()


def deployed() -> str:
    """How the deployment has ended."""
    while True:
        state = serve.status().applications.get(APPLICATION)
        if state is not None and state.status == "RUNNING":
            return "running"
        if state is not None and state.status == "DEPLOY_FAILED":
            return f"{state.message} {[deployment.message for deployment in state.deployments.values()]}"
        time.sleep(0.1)


def states() -> dict[str, int]:
    """How many replicas are in each state."""
    deployments = serve.status().applications[APPLICATION].deployments.values()
    return {str(state): count for one in deployments for state, count in one.replica_states.items() if count}


def say(answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
