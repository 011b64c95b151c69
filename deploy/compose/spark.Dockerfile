# Spark's master and workers, with a Python that has Holdfast: their tasks read state from the instances and write
# segments to the log. Spark is that of the PySpark package. The images spark:*-python3 have the Python of Ubuntu 22.04,
# 3.10, and Holdfast needs 3.11. The Python of the app has to be 3.11 too, with the same PySpark.
FROM python:3.11-slim

RUN apt-get update && apt-get install --yes --no-install-recommends default-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/holdfast
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir . pyspark==4.2.0 && useradd --create-home --uid 10002 spark \
    && ln -s "$(python -c 'import pyspark; print(pyspark.__path__[0])')" /opt/spark

ENV SPARK_HOME=/opt/spark PYSPARK_PYTHON=python3
WORKDIR /home/spark
USER spark
