# The router, and Locust in front of it: no Triton, no compiler. Built by docker-compose.yml.
ARG PYTHON_IMAGE=python:3.12.13-slim-bookworm
FROM ${PYTHON_IMAGE} AS tools
COPY requirements.lock /opt/
RUN pip install --no-cache-dir --target /opt/tools -c /opt/requirements.lock uv cyclonedx-python-lib

FROM ${PYTHON_IMAGE} AS packages
LABEL org.opencontainers.image.title="inflight" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.description="LLM inference on NVIDIA Triton for platform teams"
# A number, by which Kubernetes too can tell that it is not root; all containers that share volumes have it.
RUN groupadd --gid 10001 inflight \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp inflight \
    && install -d -o 10001 -g 10001 /data /state \
    && install -d /etc/inflight /models \
    && python -m venv --without-pip /opt/inflight/venv
ENV PATH=/opt/inflight/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /opt/inflight/app
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY deploy deploy
# A layer of their own, which is the same as long as their versions are. Triton's server, and what computes there,
# are in other images.
RUN --mount=type=bind,from=tools,source=/opt/tools,target=/opt/tools --mount=type=cache,target=/root/.cache/uv \
    sh deploy/fill_image.sh --extra postgres --extra redis --extra tracing \
        --without nvidia-pytriton --without numba --without onnx --without onnxruntime --without llguidance

FROM packages AS load-packages
RUN --mount=type=bind,from=tools,source=/opt/tools,target=/opt/tools --mount=type=cache,target=/root/.cache/uv \
    sh deploy/fill_image.sh --extra loadtest \
        --without nvidia-pytriton --without numba --without onnx --without onnxruntime --without llguidance

FROM load-packages AS locust
COPY . .
RUN python -m compileall -q .
WORKDIR /etc/inflight
USER 10001:10001
CMD ["locust", "-f", "/opt/inflight/app/loadtest/locustfile.py"]

FROM packages AS router
COPY . .
RUN python -m compileall -q .
WORKDIR /etc/inflight
USER 10001:10001
EXPOSE 8080 8081
CMD ["inflight", "router", "--help"]
