# A site: PyTorch, several GB, no open port. Build from the project's root:
#
#     docker build -f deploy/docker/site.Dockerfile -t protoseal-site:0.1.0 .
#
# Give the configuration when starting a container: protoseal client run --config /etc/protoseal/NAME/site.toml
ARG PYTHON_IMAGE=python:3.12.12-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
# A package mirror of your own, if any: --build-arg PIP_INDEX_URL=...; without credentials, which a layer would keep.
ARG PIP_INDEX_URL
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY agreement agreement
COPY algorithms algorithms
COPY crypto crypto
COPY privacy privacy
COPY proto proto
COPY protoseal protoseal
COPY protoseal_files protoseal_files
COPY secure_client secure_client
COPY secure_server secure_server
RUN python -m venv /opt/protoseal \
    && /opt/protoseal/bin/pip install --no-cache-dir --disable-pip-version-check '.[site]'

FROM ${PYTHON_IMAGE}
# A volume inherits the owner of the directory that it is first mounted on.
RUN groupadd --system --gid 10001 protoseal \
    && useradd --system --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/protoseal \
        --shell /usr/sbin/nologin protoseal \
    && install -d -o protoseal -g protoseal -m 0700 /var/lib/protoseal
COPY --from=build /opt/protoseal /opt/protoseal
# The root can be read-only: pip wrote the bytecode, state goes to the volume, temporary files to a tmpfs.
ENV PATH=/opt/protoseal/bin:$PATH \
    HOME=/var/lib/protoseal \
    MPLCONFIGDIR=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /etc/protoseal
USER 10001:10001
# No HEALTHCHECK: no port is open; a site that cannot continue exits and is restarted.
ENTRYPOINT ["protoseal"]
CMD ["client", "run", "--config", "/etc/protoseal/site/site.toml"]
