# A Spark worker whose Python has Holdfast: its tasks read state from the instances and write segments to the log.
FROM spark:4.3.0-python3

USER root
WORKDIR /opt/holdfast
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir .
USER spark
