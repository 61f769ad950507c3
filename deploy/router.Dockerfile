# The router, and Locust in front of it: no Triton, no compiler. Built by docker-compose.yml.
ARG PYTHON_IMAGE=python:3.12.13-slim-bookworm
FROM ${PYTHON_IMAGE} AS packages
WORKDIR /opt/inflight/app
RUN python -m venv --without-pip /opt/inflight/venv
COPY pyproject.toml requirements.lock ./
COPY deploy/image_packages.py deploy/
# Triton's server, and what computes there, are in other images.
RUN python deploy/image_packages.py /tmp/wanted --extra postgres --extra redis --extra tracing \
        --without nvidia-pytriton --without numba --without onnx --without onnxruntime --without llguidance \
    && pip --python /opt/inflight/venv install --no-cache-dir -c /tmp/wanted/constraints.txt \
        -r /tmp/wanted/requirements.txt
COPY client client
COPY loadtest loadtest
COPY python_backend python_backend
COPY router router
COPY simulator simulator
COPY launcher launcher
COPY README.md LICENSE ./
COPY deploy/sbom.py deploy/
RUN PIP_CONSTRAINT=/tmp/wanted/constraints.txt pip --python /opt/inflight/venv install --no-cache-dir \
        --no-deps -e .
# What the image is made of, for those who look for known weaknesses in it.
RUN pip install --no-cache-dir --target /tmp/sbom -c /tmp/wanted/constraints.txt cyclonedx-python-lib \
    && PYTHONPATH=/tmp/sbom python deploy/sbom.py /opt/inflight/venv/lib/python3.12/site-packages \
        /opt/inflight/sbom.cdx.json

FROM packages AS load-packages
RUN python deploy/image_packages.py /tmp/more --extra loadtest --without nvidia-pytriton --without numba \
        --without onnx --without onnxruntime --without llguidance \
    && pip --python /opt/inflight/venv install --no-cache-dir -c /tmp/more/constraints.txt \
        -r /tmp/more/requirements.txt \
    && PYTHONPATH=/tmp/sbom python deploy/sbom.py /opt/inflight/venv/lib/python3.12/site-packages \
        /opt/inflight/sbom.cdx.json

FROM ${PYTHON_IMAGE} AS base
LABEL org.opencontainers.image.title="inflight" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.description="LLM inference on NVIDIA Triton for platform teams"
# A number, by which Kubernetes too can tell that it is not root; all containers that share volumes have it.
RUN groupadd --gid 10001 inflight \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp inflight \
    && install -d -o 10001 -g 10001 /data /state \
    && install -d /etc/inflight /models
ENV PATH=/opt/inflight/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /etc/inflight

FROM base AS locust
COPY --from=load-packages /opt/inflight /opt/inflight
USER 10001:10001
CMD ["locust", "-f", "/opt/inflight/app/loadtest/locustfile.py"]

FROM base AS router
COPY --from=packages /opt/inflight /opt/inflight
USER 10001:10001
EXPOSE 8080 8081
CMD ["inflight", "router", "--help"]
