# SPDX-License-Identifier: Apache-2.0
# The daemon and the command-line tool. Build stage: every compiler; final stage: the binaries and the libraries they load.
#   docker build -t pinfeed .
#   docker run --shm-size=8g -v /run/pinfeed:/run/pinfeed -v /data:/data:ro pinfeed
# BASE must be a Debian 12: the official image, or one made with debootstrap (--variant=minbase bookworm).
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
WORKDIR /source
COPY deploy/install-deps deploy/install-deps
RUN deploy/install-deps build
COPY . .
RUN make build CMAKE_ARGS="-DPINFEED_TESTS=OFF -DPINFEED_BENCH=OFF" \
 && DESTDIR=/staged cmake --install build/release --prefix /usr --strip

FROM ${BASE}
COPY deploy/install-deps /tmp/install-deps
RUN /tmp/install-deps run && rm -rf /tmp/install-deps /var/lib/apt/lists/* \
 && useradd --system --uid 990 --user-group --home-dir /nonexistent --shell /usr/sbin/nologin pinfeed \
 && install -d -o pinfeed -g pinfeed -m 0755 /run/pinfeed
COPY --from=build /staged/ /
# Fails here, not at the first start, when a library is missing.
RUN ldconfig && pinfeedd --version && pinfeed --version
USER pinfeed
ENV PINFEED_ADDRESS=unix:/run/pinfeed/pinfeed.sock
VOLUME /run/pinfeed
HEALTHCHECK --interval=15s --timeout=5s --start-period=20s CMD ["pinfeed", "status"]
ENTRYPOINT ["pinfeedd"]
