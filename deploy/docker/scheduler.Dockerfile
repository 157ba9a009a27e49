# The scheduler: gateways and executors find it on 8003.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
RUN python -m venv --without-pip /opt/nereid
# What it needs first: that layer lasts until pyproject.toml changes.
COPY pyproject.toml README.md LICENSE ./
RUN mkdir nereid services && touch nereid/__init__.py services/__init__.py
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip --python /opt/nereid/bin/python install '.[scheduler]'
COPY nereid nereid
COPY services/__init__.py services/
COPY services/scheduler services/scheduler
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip --python /opt/nereid/bin/python install --no-deps --force-reinstall .

FROM ${PYTHON_IMAGE}
COPY --from=build /opt/nereid /opt/nereid
ENV PATH=/opt/nereid/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 8002 8003
HEALTHCHECK --interval=5s --timeout=4s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8002/metrics', timeout=3)"]
ENTRYPOINT ["python", "-m", "nereid.services.scheduler"]
