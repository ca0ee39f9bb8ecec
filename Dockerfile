# SPDX-License-Identifier: Apache-2.0
# The daemon and its tool, installed from the project's own Debian packages. Build stages: every compiler; final stage: none.
#   docker build -t pinfeed .
#   docker build -t pinfeed --build-arg CUDA=docker.io/nvidia/cuda:12.9.1-devel-ubuntu22.04 .     with the GPU path
#   docker run --pid=host --read-only --stop-timeout=40 -v /run/pinfeed:/run/pinfeed -v /data:/data:ro pinfeed --allowed-roots=/data
# docs/containers.md says what must be shared with trainers, and why. Needs BuildKit, or Buildah 1.28 (Podman 4.3) or later.

# Both bases must be Debian 12, of which the packages are. The GPU path needs nothing in the final one: the driver is loaded at run
# time, and the container toolkit puts it there; name an image of your own when your hosts want more in it.
ARG BUILD_BASE=docker.io/library/debian:bookworm-slim
ARG RUNTIME_BASE=docker.io/library/debian:bookworm-slim
# An image with the CUDA Toolkit below /usr/local, of which only nvcc and the headers are used. Without one the GPU path is left out.
ARG CUDA=${BUILD_BASE}

FROM ${CUDA} AS cuda

FROM ${BUILD_BASE} AS build
WORKDIR /source
COPY deploy/install-deps deploy/install-deps
RUN deploy/install-deps build packages
COPY . .
# So that a layer built with one toolkit is not taken for one with another: Buildah does not look at what is mounted.
ARG CUDA
RUN --mount=type=bind,from=cuda,source=/usr/local,target=/cuda \
    for toolkit in /cuda/cuda-*.*; do [ ! -d "$toolkit" ] || ln -sfn "$toolkit" /usr/local/cuda; done \
 && make packages CMAKE_ARGS="-DPINFEED_TESTS=OFF -DPINFEED_BENCH=OFF"

FROM ${RUNTIME_BASE}
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="pinfeed" \
      org.opencontainers.image.description="Loads training batches once per host and hands them to trainers as mapped memory" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# The user has the same number in every image, since the host's folders are given to it by number. The folder of the sockets is left
# out: it must be mounted, and a daemon that finds none says so, instead of serving a folder that no trainer sees.
COPY --from=build /source/build/packages/libpinfeed0_*.deb /source/build/packages/pinfeed_*.deb /tmp/packages/
RUN groupadd --system --gid 990 pinfeed \
 && useradd --system --uid 990 --gid 990 --no-create-home --home-dir / --shell /usr/sbin/nologin pinfeed \
 && apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
      systemd-standalone-sysusers systemd-standalone-tmpfiles /tmp/packages/*.deb >/dev/null \
 && rm -rf /tmp/packages /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/debconf/*-old /var/log/apt /var/log/dpkg.log /run/pinfeed \
 && pinfeedd --version && pinfeed --version
# What the container toolkit is to bring along; ignored where there is no GPU.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
ENV PINFEED_CONFIG=/etc/pinfeed/pinfeed.toml
USER 990:990
WORKDIR /
EXPOSE 9467
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=3 CMD ["pinfeed", "status"]
ENTRYPOINT ["pinfeedd"]
