"""Offsets asked for -> ranges -> batches -> rows.

    ReadOptions -> planning (ranges of numbers, EARLIEST and LATEST) -> splits (a piece for each task)
    in a task: a piece -> planning (numbers of one moment) -> reading (fetch, decode) -> Arrow

Module by module:

    topic_reader    what the topics at one PATH can be asked, whatever wrote them
    planning        which partitions, from where to where; times become offsets
    splits          large ranges, divided among tasks
    reading         the records of one range
    rows            the columns of a read, in Spark and without
    offset_bounds   from where to where a read in plain Python goes
    data_loss       what becomes of a read whose records are gone
    stream_offset   where a streaming query stands, as its checkpoint has it
    stream_limits   how much a micro-batch takes
    stream_planner  from where to where the next micro-batch goes, while topics come and go

Source: Spark connector/kafka-0-10-sql/.../KafkaOffsetReaderAdmin.scala, KafkaDataConsumer.scala.
"""
