# The Python that constraints.txt was made with.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS build
RUN apt-get update && apt-get install -qy --no-install-recommends gcc libc6-dev
WORKDIR /src
COPY pyproject.toml setup.py constraints.txt README.md LICENSE ./
COPY docker/build.sh docker/
COPY picker picker/
COPY scorer scorer/
RUN docker/build.sh /opt/picker

FROM python:${PYTHON}-slim
COPY --from=build /opt/picker /opt/picker
COPY docker/health.py /opt/picker/
USER 65532:65532
# ext_proc, gRPC health, HTTP /metrics
EXPOSE 9002 9003 9090
HEALTHCHECK --interval=5s --timeout=3s --start-period=5s CMD ["/opt/picker/bin/python", "/opt/picker/health.py"]
ENTRYPOINT ["/opt/picker/bin/serve-picker", "serve"]
