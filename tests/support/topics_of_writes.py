"""Topics as a Spark job's write finds or creates them, in one step, and a task that writes to them."""

from __future__ import annotations

from spark_kbatch.cluster import job
from spark_kbatch.cluster.catalog import FolderCatalog
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.commit.staging import Extent
from spark_kbatch.options.topic import Topic
from spark_kbatch.options.write import WriteOptions
from spark_kbatch.producer.task_producer import TaskProducer
from spark_kbatch.store.job import TopicsOfJob


def find_or_create_topic(parts: FolderParts, name: str, options: WriteOptions) -> Topic:
    """Return the topic that a write goes to, created with its options if it does not exist."""
    topics, catalog = TopicsOfJob(options), FolderCatalog(parts)
    return topics.find(catalog, name) or catalog.create(topics.plan(catalog, name))


def task_producer(
    parts: FolderParts, transaction: str, options: WriteOptions
) -> TaskProducer[list[Extent]]:
    """Return the producer of a task, which creates the topics that it writes to."""
    return job.task_producer(
        parts, transaction, options, lambda name: find_or_create_topic(parts, name, options)
    )
