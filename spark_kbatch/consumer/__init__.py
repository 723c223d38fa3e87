"""Reads: requested offsets -> ranges -> batches -> rows.

    driver  ReadOptions -> planning (ranges, with EARLIEST and LATEST) -> splits (a piece per task)
    task    piece -> planning (offsets as of one moment) -> reading (fetch, decode) -> Arrow

Module by module:

    same_topic      reads that fail once their topic is another one; the part of a source that follows from the rest
    topic_reader    plans and reads over a source; topics as users read them in Python
    planning        which partitions to read, from where to where; what if records are gone
    splits          large ranges, divided among tasks
    matching        the rows that a read's condition is true for, and what need not be read for that
    reading         the records of one range, and as rows, in Spark and without
    rows            the columns of rows: what keys and values become, and an error or null
    stream_planner  start and end of the next micro-batch, while topics come and go; its checkpoint
    peeking         some records for a person to look at, for a bounded number of bytes
    following       a loop over new records: looks, pauses, a group's commits
    group_commits   how far a query has read, committed as a consumer group's offsets
    lag             how far a query is behind, by the progress that Spark reports

Source: Spark connector/kafka-0-10-sql/.../KafkaOffsetReaderAdmin.scala, KafkaDataConsumer.scala.
"""
