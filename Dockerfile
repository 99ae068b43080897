# syntax=docker/dockerfile:1
# One process, one engine, one model. What is installed is chosen by BUILD:
#
#   docker build --tag mulgil:gpu .                               on vLLM's own image
#   docker build --tag mulgil:cpu --build-arg BUILD=cpu .         vLLM for CPU (docs/deploy.md says what TORCH_INDEX is)
#   docker build --tag mulgil:simulated --build-arg BUILD=simulated .   no vLLM, no model
#
# EXTRAS=otel,postgres,ray: extras of pyproject.toml. Pin the images by digest where builds must repeat: VLLM_IMAGE=…@sha256:…
ARG BUILD=gpu
# The adapter is written against this version of vLLM and no other.
ARG VLLM_IMAGE=vllm/vllm-openai:v0.32.0
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS wheel
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY scripts/constraints.txt scripts/
RUN python -m pip install --constraint scripts/constraints.txt hatchling
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN python -m pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .

FROM ${PYTHON_IMAGE} AS python
# libnuma: vLLM for CPU is linked against it.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends tini=0.19.* libnuma1=2.0.* \
 && rm -rf /var/lib/apt/lists/*
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv /opt/mulgil
ENV PATH=/opt/mulgil/bin:$PATH
WORKDIR /build
COPY pyproject.toml ./
COPY scripts/constraints.txt deploy/docker/requirements.py ./

FROM python AS packages-cpu
ARG TORCH_INDEX=""
ARG EXTRAS=otel,postgres
RUN python requirements.py "cpu,${EXTRAS}" > requirements.txt \
 && python -m pip install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} --constraint constraints.txt \
      torch==2.13.0+cpu --requirement requirements.txt \
 # Their PyPI builds do not import beside the CPU build of torch, and vLLM serves text without them.
 && python -m pip uninstall --yes torchvision torchaudio torchcodec

FROM python AS packages-simulated
ARG EXTRAS=otel,postgres
RUN python requirements.py "${EXTRAS}" > requirements.txt \
 && python -m pip install --constraint constraints.txt --requirement requirements.txt

FROM ${VLLM_IMAGE} AS packages-gpu
ARG EXTRAS=otel,postgres
# Whoever the base image runs as; the last stage has a user of its own.
# hadolint ignore=DL3002
USER 0:0
RUN apt-get update \
 && apt-get install --yes --no-install-recommends tini=0.19.* \
 && rm -rf /var/lib/apt/lists/*
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
# Beside vLLM's packages, not over them: what the image was built and tested with stays as it is.
RUN python3 -m venv --system-site-packages /opt/mulgil
ENV PATH=/opt/mulgil/bin:$PATH
WORKDIR /build
COPY pyproject.toml ./
COPY scripts/constraints.txt deploy/docker/requirements.py ./
RUN python requirements.py "gpu,${EXTRAS}" > requirements.txt \
 && python -m pip install --requirement requirements.txt \
 && python -c "from importlib.metadata import version; v = version('vllm'); assert v.split('+')[0] == '0.32.0', v"

# BUILD names a stage above.
# hadolint ignore=DL3006
FROM packages-${BUILD} AS gateway
# What can be made again (weights, compiled kernels) is in the one folder, what cannot (keys, audit) in the other.
RUN groupadd --gid 10001 mulgil \
 && useradd --uid 10001 --gid 10001 --no-log-init --no-create-home --home-dir /var/cache/mulgil \
      --shell /usr/sbin/nologin mulgil \
 && install --directory --owner=mulgil --group=mulgil --mode=0750 /var/cache/mulgil /var/lib/mulgil
# The wheel is bound, not copied: nothing of it stays in a layer. (No cache: PIP_NO_CACHE_DIR is set above.)
# hadolint ignore=DL3042
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    python -m pip install --no-deps /wheels/*.whl && mulgil version
COPY deploy/docker/healthcheck.py /opt/mulgil/healthcheck.py
ENV HOME=/var/cache/mulgil \
    XDG_CACHE_HOME=/var/cache/mulgil \
    XDG_CONFIG_HOME=/var/cache/mulgil/config \
    XDG_STATE_HOME=/var/lib \
    PYTHONUNBUFFERED=1 \
    MULGIL_HOST=0.0.0.0
WORKDIR /var/lib/mulgil
# By number, so that an orchestrator can see that it is not root.
USER 10001:10001
EXPOSE 8000
# Alive, not ready: some orchestrators restart what is unhealthy, and that must not meet an engine which is being rebuilt.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=6 \
  CMD ["python", "-I", "/opt/mulgil/healthcheck.py", "/health/live"]
# Reaps what a dead engine leaves. Without -g: SIGTERM is for the gateway alone, which ends its engine in order.
ENTRYPOINT ["tini", "--", "mulgil"]
CMD ["serve"]
