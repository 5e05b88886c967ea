# Sluice on an official image of Redis or Valkey: `docker build -t sluice .`
#
# BASE is the image, of Debian. OPTIONS are load options, say "families lock,stock,cache,rate" for redis:8, which has
# filters of its own. docs/operations.md has examples.
ARG BASE=redis:7.2-bookworm

# Bookworm's C library is old enough for all of these.
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
# Not in /usr/local/lib/redis/modules: the images of Redis 8 load what is there by themselves, a second time. In a
# container the server listens on all addresses, as in the official images; what is published is said to `docker run`.
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
# The image's own entrypoint takes a name that ends in .conf for one of its server, redis-server or valkey-server, and
# starts that as a user without rights, in /data.
CMD ["/usr/local/etc/redis/redis.conf"]
