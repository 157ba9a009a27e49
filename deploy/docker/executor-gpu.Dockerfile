# An executor on NVIDIA GPUs: onnxruntime-gpu and the CUDA libraries that it names come from PyPI, the driver is the host's.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
# A driver too old for the newest CUDA wants an older one: "onnxruntime-gpu[cuda,cudnn]==1.22.*", say, takes CUDA 12.
ARG ONNXRUNTIME="onnxruntime-gpu[cuda,cudnn]>=1.21"

FROM ${PYTHON_IMAGE} AS build
ARG ONNXRUNTIME
# "gpu,pytorch" adds a backend; see docs/backends.md.
ARG EXTRAS=gpu
WORKDIR /src
RUN python -m venv --without-pip /opt/nereid
# What it needs first: that layer lasts until pyproject.toml changes.
COPY pyproject.toml README.md LICENSE ./
RUN mkdir nereid services && touch nereid/__init__.py services/__init__.py
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip --python /opt/nereid/bin/python install ".[${EXTRAS}]" "${ONNXRUNTIME}"
COPY nereid nereid
COPY services/__init__.py services/
COPY services/executor services/executor
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip --python /opt/nereid/bin/python install --no-deps --force-reinstall .

FROM ${PYTHON_IMAGE}
COPY --from=build /opt/nereid /opt/nereid
# The CUDA wheels' libraries, wherever each CUDA release puts them, for the loader to find by name.
RUN find /opt/nereid -type d -path '*/nvidia/*/lib' > /etc/ld.so.conf.d/nereid-cuda.conf && ldconfig
ENV PATH=/opt/nereid/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 8002
HEALTHCHECK --interval=5s --timeout=4s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8002/metrics', timeout=3)"]
ENTRYPOINT ["python", "-m", "nereid.services.executor"]
