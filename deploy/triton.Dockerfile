# NVIDIA's Triton and our engine; another base has TensorRT-LLM or vLLM as well. Built by docker-compose.yml.
ARG BASE=nvcr.io/nvidia/tritonserver:26.07-py3
FROM ${BASE} AS packages
WORKDIR /opt/inflight/app
# An environment on top of the image's packages: numpy, and torch where it has one, are the image's own; its stub
# finds the environment by PATH. Without ensurepip, which Ubuntu leaves out: the image's pip is used.
RUN python3 -m venv --without-pip --system-site-packages /opt/inflight/venv
COPY pyproject.toml requirements.lock ./
COPY deploy/image_packages.py deploy/
# numba is for CPUs; Triton's server is the image's. TensorRT-LLM 1.2 brings triton-lang 3.5, and our kernels need
# more: without it the engine would find no GPU that it can use. The image's own constraints for pip would forbid.
ENV PIP_CONSTRAINT=
RUN /opt/inflight/venv/bin/python deploy/image_packages.py /tmp/wanted --extra postgres --extra redis \
        --extra buckets --extra oci --keep-installed --without nvidia-pytriton --without numba --without numpy \
        --also 'torch>=2.6' --also 'triton>=3.6' \
    && /opt/inflight/venv/bin/python -m pip install --no-cache-dir -c /tmp/wanted/constraints.txt \
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
RUN PIP_CONSTRAINT=/tmp/wanted/constraints.txt /opt/inflight/venv/bin/python -m pip install --no-cache-dir \
        --no-deps -e .
# What the image is made of, for those who look for known weaknesses in it.
RUN python3 -m pip install --no-cache-dir --target /tmp/sbom -c /tmp/wanted/constraints.txt \
        cyclonedx-python-lib \
    && PYTHONPATH=/tmp/sbom python3 deploy/sbom.py /opt/inflight/venv/lib/python3*/site-packages \
        /opt/inflight/sbom.cdx.json

FROM ${BASE}
LABEL org.opencontainers.image.title="inflight-triton" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.description="NVIDIA Triton with inflight's engine"
RUN groupadd --gid 10001 inflight \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp inflight \
    && install -d -o 10001 -g 10001 /data /state \
    && install -d /etc/inflight /models
COPY --from=packages /opt/inflight /opt/inflight
ENV PATH=/opt/inflight/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    INFLIGHT_TRITON_HOME=/opt/tritonserver
WORKDIR /etc/inflight
USER 10001:10001
EXPOSE 8001 8002
CMD ["inflight", "triton", "--help"]
