# An example of a trainer: torch for CPUs, the trainer library, and examples/kubernetes/train.py.
# Built by images/build, which puts the wheels beside it: nothing is downloaded here.
ARG BASE=python:3.11-slim
FROM ${BASE} AS wheels
COPY install.sh /install.sh
COPY wheels/trainer /wheels
RUN sh /install.sh wheels

FROM ${BASE}
COPY --from=wheels /opt/lanefeed /opt/lanefeed
RUN --mount=type=bind,target=/lanefeed,source=lanefeed sh /lanefeed/install.sh lanefeed "" "torch.distributed.run lanefeed_core lanefeed"
ENV PATH=/opt/lanefeed/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp LOGNAME=lanefeed
USER 65532:65532
COPY train.py /app/train.py
WORKDIR /app
CMD ["torchrun", "train.py"]
