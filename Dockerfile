# kvatlas in an image without anything else: `docker build -t kvatlas .`
#
# The program is linked to the C library dynamically, on purpose: ONNX Runtime and NVIDIA's driver
# are loaded while it runs, and a static program (musl) could load neither. So the image is not
# empty but as small as that allows: the program (22 MB), glibc, libstdc++ and certificates (7 MB).
# deploy/assemble-image says what is in it.
#
# A GPU: `docker run --gpus all`. NVIDIA's container runtime mounts its driver (libcuda) into the
# container; nothing of CUDA is in the image. Text embeddings: mount a folder with libonnxruntime.so
# and the model, and name them (`kvatlas serve --help`, --embedding-model).

FROM rust:1.95.0-slim-bookworm AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# What kvatlas_build says on /metrics: --build-arg KVATLAS_REVISION=$(git rev-parse --short HEAD)
ARG KVATLAS_REVISION=unknown
# Function names stay, for backtraces; line numbers would triple the size.
RUN CARGO_PROFILE_RELEASE_STRIP=debuginfo cargo build --release --locked --package kvatlas
RUN deploy/assemble-image target/release/kvatlas /image

FROM scratch
COPY --from=build /image /
USER 65532:65532
VOLUME /var/lib/kvatlas
ENV KVATLAS_DATA_DIR=/var/lib/kvatlas \
    KVATLAS_LISTEN=0.0.0.0:50051 \
    KVATLAS_HTTP_LISTEN=0.0.0.0:9464
EXPOSE 50051 9464
# Sixty seconds to read the data folder; a million donors take about twenty.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["/usr/bin/kvatlas", "health"]
# SIGTERM drains: KVATLAS_DRAIN_MS (10 s) for the calls in flight.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/kvatlas"]
CMD ["serve"]
