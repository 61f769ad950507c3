# NVIDIA's Triton and our engine; another base has TensorRT-LLM or vLLM as well. Built by docker-compose.yml.
ARG BASE=nvcr.io/nvidia/tritonserver:26.07-py3
FROM ${BASE}
LABEL org.opencontainers.image.title="inflight-triton" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.description="NVIDIA Triton with inflight's engine"
# An environment on top of the image's packages: numpy, and torch where it has one, are the image's own; its stub
# finds the environment by PATH. Without ensurepip, which Ubuntu leaves out: the image's pip is used, and not uv,
# which does not see what is below an environment.
RUN groupadd --gid 10001 inflight \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp inflight \
    && install -d -o 10001 -g 10001 /data /state \
    && install -d /etc/inflight /models \
    && python3 -m venv --without-pip --system-site-packages /opt/inflight/venv
ENV PATH=/opt/inflight/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    INFLIGHT_TRITON_HOME=/opt/tritonserver
WORKDIR /opt/inflight/app
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY deploy deploy
# numba is for CPUs; Triton's server is the image's. TensorRT-LLM 1.2 brings triton-lang 3.5, and our kernels need
# more: without it the engine would find no GPU that it can use. The image's own constraints for pip would forbid.
RUN --mount=type=cache,target=/root/.cache INSTALLER="python -m pip" PIP_CONSTRAINT= sh deploy/fill_image.sh \
        --extra postgres --extra redis --extra buckets --extra oci --keep-installed \
        --without nvidia-pytriton --without numba --without numpy --also 'torch>=2.6' --also 'triton>=3.6'
COPY . .
RUN python -m compileall -q .
WORKDIR /etc/inflight
USER 10001:10001
EXPOSE 8001 8002
CMD ["inflight", "triton", "--help"]
