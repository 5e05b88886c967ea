# Sluice on an official image of Redis or Valkey: `docker build -t sluice .`
#
# BASE is an image based on Debian. OPTIONS are load options, for example "families lock,stock".
# docs/operations.md has examples.
ARG BASE=redis:7.2-bookworm

# The C library of Bookworm is old enough for all these images.
FROM rust:1-bookworm AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends libclang-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY . .
RUN cargo build --release --locked --lib \
    && scripts/audit --texts > target/THIRD-PARTY \
    && DESTDIR=/build/target/root MODULE=target/release/libsluice.so CONF=redis.conf scripts/install.sh
ARG OPTIONS=""
# Not in /usr/local/lib/redis/modules: the images of Redis 8 load all modules of that folder, so Sluice would load twice. In a
# container the server listens on all addresses, as in the official images; `docker run` publishes the ports.
RUN sed -i -E \
        -e 's|^(# )?loadmodule [^ ]+|\1loadmodule /usr/local/lib/sluice/libsluice.so|' \
        -e "s|^loadmodule .*|& $OPTIONS|" \
        -e 's|^dir .*|dir /data|' \
        -e 's|^bind .*|bind * -::*|' \
        -e 's|^protected-mode .*|protected-mode no|' \
        target/root/usr/local/share/sluice/redis.conf

FROM ${BASE}
COPY --from=build /build/target/release/libsluice.so /usr/local/lib/sluice/
COPY --from=build /build/target/root/usr/local/share/sluice/redis.conf /usr/local/etc/redis/
COPY --from=build /build/LICENSE /build/target/THIRD-PARTY /usr/local/share/doc/sluice/
# The entrypoint of the image starts its server with a file whose name ends in .conf, as an unprivileged user, in /data.
CMD ["/usr/local/etc/redis/redis.conf"]
