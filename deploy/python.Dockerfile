# Router, Locust, and Triton from PyPI with our engine on the CPU, on layers that they share. Built by
# docker-compose.yml.
ARG PYTHON_IMAGE=python:3.12.13-slim-bookworm
FROM ${PYTHON_IMAGE} AS code
WORKDIR /opt/inflight/app
COPY . .
# The root of containers is read-only: what is not compiled here is compiled at every start.
RUN python -m compileall -q .

# Packages are layers of their own, which stay the same while their versions do. Triton's server, and what computes
# there, are not for everybody.
FROM ${PYTHON_IMAGE} AS packages
LABEL org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.description="LLM inference on NVIDIA Triton for platform teams"
# The official image has its standard library uncompiled: each process that starts would compile what it imports.
RUN python -m compileall -q -x 'site-packages|/tests?/' /usr/local/lib/python3*
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
RUN --mount=type=cache,target=/root/.cache sh deploy/fill_image.sh --extra postgres --extra redis --extra tracing \
        --without nvidia-pytriton --without numba --without onnx --without onnxruntime --without llguidance
WORKDIR /etc/inflight

FROM packages AS locust-packages
WORKDIR /opt/inflight/app
RUN --mount=type=cache,target=/root/.cache sh deploy/fill_image.sh --extra loadtest \
        --without nvidia-pytriton --without numba --without onnx --without onnxruntime --without llguidance
WORKDIR /etc/inflight

# Known models are downloaded by pip.
FROM packages AS triton-cpu-packages
WORKDIR /opt/inflight/app
RUN --mount=type=cache,target=/root/.cache sh deploy/fill_image.sh --extra buckets --extra oci --also pip
WORKDIR /etc/inflight

FROM locust-packages AS locust
LABEL org.opencontainers.image.title="inflight-locust"
COPY --from=code /opt/inflight/app /opt/inflight/app
USER 10001:10001
CMD ["locust", "-f", "/opt/inflight/app/loadtest/locustfile.py"]

FROM triton-cpu-packages AS triton-cpu
LABEL org.opencontainers.image.title="inflight-triton-cpu"
COPY --from=code /opt/inflight/app /opt/inflight/app
USER 10001:10001
EXPOSE 8001 8002
CMD ["inflight", "triton", "--help"]

FROM packages AS router
LABEL org.opencontainers.image.title="inflight-router"
COPY --from=code /opt/inflight/app /opt/inflight/app
USER 10001:10001
EXPOSE 8080 8081
CMD ["inflight", "router", "--help"]
