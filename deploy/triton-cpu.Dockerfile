# Triton from PyPI with our engine, which computes on the CPU. Built by docker-compose.yml.
ARG PYTHON_IMAGE=python:3.12.13-slim-bookworm
FROM ${PYTHON_IMAGE} AS tools
COPY requirements.lock /opt/
RUN pip install --no-cache-dir --target /opt/tools -c /opt/requirements.lock uv cyclonedx-python-lib

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="inflight-triton-cpu" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.description="Triton with inflight's engine, on the CPU"
RUN groupadd --gid 10001 inflight \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp inflight \
    && install -d -o 10001 -g 10001 /data /state \
    && install -d /etc/inflight /models \
    && python -m venv --without-pip /opt/inflight/venv
ENV PATH=/opt/inflight/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /opt/inflight/app
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY deploy deploy
# A layer of their own, which is the same as long as their versions are. Known models are downloaded by pip.
RUN --mount=type=bind,from=tools,source=/opt/tools,target=/opt/tools --mount=type=cache,target=/root/.cache/uv \
    sh deploy/fill_image.sh --extra postgres --extra redis --extra buckets --extra oci --also pip
COPY . .
RUN python -m compileall -q .
WORKDIR /etc/inflight
USER 10001:10001
EXPOSE 8001 8002
CMD ["inflight", "triton", "--help"]
