# The operator: reconciles ShardedTrainingJobs, takes the sidecars' reports. No pyarrow, no torch.
# Built by images/build, which puts the wheels beside it: nothing is downloaded here.
ARG BASE=python:3.11-slim
FROM ${BASE} AS wheels
COPY install.sh /install.sh
COPY wheels/operator /wheels
RUN sh /install.sh wheels

FROM ${BASE}
COPY --from=wheels /opt/lanefeed /opt/lanefeed
RUN --mount=type=bind,target=/lanefeed,source=lanefeed sh /lanefeed/install.sh lanefeed "cluster" "lanefeed_operator lanefeed_core"
ENV PATH=/opt/lanefeed/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp LOGNAME=lanefeed
USER 65532:65532
WORKDIR /tmp
EXPOSE 8080 9405 9443
ENTRYPOINT ["python", "-m", "lanefeed_operator"]
