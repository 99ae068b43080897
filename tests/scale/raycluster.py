"""A Ray of its own that says it has so many GPUs; ends when its standard input does. Run by test_ray_executor.py."""

import sys

import ray


def main() -> None:
    context = ray.init(address="local", num_cpus=8, num_gpus=int(sys.argv[1]), include_dashboard=False)
    sys.stdout.write(f"address {context.address_info['gcs_address']}\n")
    sys.stdout.flush()
    sys.stdin.read()
    ray.shutdown()


if __name__ == "__main__":
    main()
