# The sidecar of each training pod, and the indexer (`python -m lanefeed_sidecar index`). No torch, no kopf, no
# Kubernetes client.
# Built by images/build, which puts the wheels beside it: nothing is downloaded here.
ARG BASE=python:3.11-slim
FROM ${BASE} AS wheels
COPY install.sh /install.sh
COPY wheels/sidecar /wheels
RUN sh /install.sh wheels

FROM ${BASE}
COPY --from=wheels /opt/lanefeed /opt/lanefeed
RUN --mount=type=bind,target=/lanefeed,source=lanefeed sh /lanefeed/install.sh lanefeed "sidecar,s3,images" "lanefeed_sidecar lanefeed_core"
ENV PATH=/opt/lanefeed/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp LOGNAME=lanefeed
USER 65532:65532
WORKDIR /tmp
EXPOSE 9404
ENTRYPOINT ["python", "-m", "lanefeed_sidecar"]
