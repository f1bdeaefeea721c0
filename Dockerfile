# docker build -t fedskip .                                                                 without a GPU
# docker build -t fedskip:cuda --build-arg TORCH=https://download.pytorch.org/whl/cu130 .   with NVIDIA GPUs
# docker run --rm -v "$PWD:/work" --user "$(id -u):$(id -g)" fedskip run mine.yaml          GPUs: docker run --gpus all
FROM python:3.12-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim-bookworm
ARG TORCH=https://download.pytorch.org/whl/cpu
ARG EXTRAS=parquet,metrics,privacy
# a C++ compiler, for torch.compile: without it the stacked engine is slower
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir torch --index-url "$TORCH"
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(echo /wheels/fedskip-*.whl)[$EXTRAS]"
RUN useradd --create-home --uid 1000 fedskip && chmod 777 /home/fedskip && mkdir /work && chown fedskip /work
ENV HOME=/home/fedskip
USER fedskip
WORKDIR /work
ENTRYPOINT ["fedskip"]
CMD ["--help"]
