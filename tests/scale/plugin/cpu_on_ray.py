"""vLLM's CPU platform, told that Ray may place its workers: for the tests of the Ray executor alone.

vLLM 0.32 knows no resource of Ray's for a CPU. Here it is `GPU`, of which the test's Ray says that it has some.
"""

from vllm.platforms.cpu import CpuPlatform


class CpuOnRay(CpuPlatform):  # type: ignore[misc]  # vLLM is not followed
    """A CPU that Ray counts as a GPU."""

    ray_device_key = "GPU"


def register() -> str:
    """What vLLM asks of a platform's plugin: where its class is."""
    return "cpu_on_ray.CpuOnRay"
