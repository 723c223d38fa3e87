"""The claims of the test suites of Spark's own Kafka connector, and the tests that make them here.

Letters stand for suites, numbers for their tests in order; a test under interop/ runs with both formats.
A test of Spark's that has no counterpart says why. `[id]` is one case of a test.

KafkaRelationSuite: batches
    R1      everything; rows that come later are in the next evaluation of the frame
            interop/test_batch_parity::test_rows_are_all_records_at_the_time_of_the_evaluation
    R2      the default bounds are earliest and latest
            consumer/test_batch_reads::test_default_bounds_are_earliest_and_latest
    R3      a number stays as an end, latest moves
            interop/test_batch_parity::test_an_end_offset_stays_fixed_and_latest_moves
    R4      headers: none are null, order and repeats are kept
            interop/test_batch_parity::test_headers_keep_their_order_and_duplicates
    R5-R10  times at the start, the end or both, for all partitions or each, beside offsets
            interop/test_batch_parity::test_times_bound_a_read
    R11     no record that late fails the read, at the start
            interop/test_batch_parity::test_a_start_later_than_all_records_is_an_error_or_the_end
    R12     one time goes before times, those before offsets
            interop/test_batch_parity::test_times_bound_a_read[the-first-of-several-counts]
            options/test_read::test_one_time_goes_before_times_and_those_before_offsets
    R13     no record that late is the end of the partition, at the end
            interop/test_batch_parity::test_times_bound_a_read[by-partition-and-no-later-one-is-the-end]
    R14     one frame twice in a query
            interop/test_batch_parity::test_one_frame_twice_in_a_query_gives_its_rows_twice
    R15     earliest is looked up when the frame is evaluated
            interop/test_batch_parity::test_earliest_is_looked_up_when_the_frame_is_evaluated
    R16     options that do not go
            interop/test_batch_parity::test_load_refuses
    R17-R18  transactions, by isolation level
            spark/test_batch_options::test_rows_of_a_transaction_are_read_once_it_is_committed_or_at_once_if_uncommitted_reads_are_requested
            consumer/test_batch_reads::test_transactions_are_read_by_their_isolation_level
    R19     minPartitions makes tasks and loses nothing
            spark/test_batch_options::test_pieces_of_ranges_are_tasks_and_a_reused_frame_sees_new_rows
    R20     both sides name the same partitions
            interop/test_batch_parity::test_load_refuses[other-partitions]
    R21     a start past its end, as they are given
            interop/test_batch_parity::test_load_refuses[start-past-its-end]
    R22     a start past its end, once it is looked up
            interop/test_batch_parity::test_an_action_is_refused[start-past-its-end]
    R23     a start past the end of an empty topic
            consumer/test_batch_reads::test_a_start_after_the_end_of_an_empty_topic_is_out_of_range

KafkaMicroBatchSourceSuite: streams
    M1      asynchronous tracking of progress
            not here: Spark has it for sources and sinks of its own
    M2      AvailableNow takes what there is in limited batches and ends
            interop/test_stream_parity::test_a_limit_is_shared_among_the_partitions_by_their_sizes
            spark/test_stream_reader::test_available_now_reads_in_limited_batches_and_ends
    M3      AvailableNow, partitions are lost between batches
            consumer/test_stream_planner::test_available_now_fails_where_partitions_get_lost_between_batches
    M4      AvailableNow, offsets shrink between batches
            consumer/test_stream_planner::test_available_now_fails_where_offsets_shrink_between_batches
    M5      a query starts again where it was
            interop/test_stream_parity::test_each_row_is_read_once_over_several_runs
    M6      the largest limit takes everything
            consumer/test_stream_limits::test_the_largest_limit_covers_the_largest_ranges
    M7      maxOffsetsPerTrigger is shared out, after a restart too; Once ignores it
            interop/test_stream_parity::test_a_limit_is_shared_among_the_partitions_by_their_sizes
            interop/test_stream_parity::test_once_ignores_the_limit
            consumer/test_stream_planner::test_the_limit_holds_over_batches_and_restarts_unless_spark_asks_for_everything
    M8      minOffsetsPerTrigger waits, but not the first time, nor past the delay, nor with Once
            spark/test_stream_reader::test_a_batch_waits_for_enough_offsets_or_for_the_delay
            spark/test_stream_reader::test_once_ignores_limits
    M9      both limits
            spark/test_stream_reader::test_a_batch_waits_for_enough_offsets_and_keeps_to_the_maximum
            consumer/test_stream_planner::test_minimum_and_maximum_offsets_per_trigger_can_be_combined
    M10     the progress counts the rows
            interop/test_stream_parity::test_each_row_is_read_once_over_several_runs
    M11     topics of a pattern are deleted and others come
            spark/test_stream_reader::test_topics_of_a_pattern_come_and_go_while_the_query_runs
    M12     no offset without topics is logged once there were some
            spark/test_stream_reader::test_topics_of_a_pattern_come_and_go_while_the_query_runs
            consumer/test_stream_data_loss::test_there_is_no_batch_if_no_topic_is_left
    M13     a topic that is recreated fails the query
            spark/test_stream_reader::test_a_deleted_topic_fails_the_query_if_loss_is_not_accepted[recreated]
    M14     a new topic of a pattern is read from its start
            interop/test_stream_parity::test_a_new_topic_of_the_pattern_is_read_from_its_start
    M15-M16  initial offsets have a file of their own, which goes before the options
            spark/test_stream_reader::test_starting_offsets_of_a_query_with_a_checkpoint_are_not_checked
            spark/test_stream_reader::test_an_uncommitted_first_batch_is_repeated_from_the_same_start
            not here: the file; they are in the first offset that Spark logs
    M17     offsets of a later release are refused
            consumer/test_stream_planner_offsets::test_other_json_is_refused_as_an_offset[written by a later release]
    M18     windows with a watermark on the column timestamp
            spark/test_stream_reader::test_records_are_counted_in_windows_by_their_time
    M19     a topic is deleted while a query runs that accepts loss
            spark/test_stream_reader::test_topics_of_a_pattern_come_and_go_while_the_query_runs
    M20     one source is idle while another goes on
            spark/test_stream_reader::test_a_source_used_twice_works_beside_an_idle_one
    M21-M22  the group that a broker knows
            options/test_read::test_option_that_only_a_broker_needs_is_accepted_and_changes_nothing
            not here: there is no broker that knows groups
    M23     a stream joined with itself has one source
            interop/test_stream_parity::test_a_stream_joined_with_itself_has_one_source
    M24-M25  micro-batches whose offsets are not all rows, by isolation level
            spark/test_stream_reader::test_a_query_goes_on_over_micro_batches_without_visible_rows
            consumer/test_stream_reads::test_a_stream_goes_on_over_batches_without_visible_rows
    M26     what comes while a micro-batch is read is in the next one
            consumer/test_stream_reads::test_records_that_arrive_during_a_batch_are_in_the_next_one
    M27     a null key, a null value, both
            consumer/test_stream_reads::test_records_without_key_or_value_are_read_with_nulls
    M28     minPartitions within foreachBatch
            spark/test_stream_reader::test_a_stream_has_the_requested_columns_and_number_of_tasks
    M29     a time that Spark's timestamp does not hold
            consumer/test_rows::test_a_time_that_spark_cannot_hold_is_an_error_that_names_it_and_its_topic
    M30     which of two implementations is taken
            not here: there is one
    M31     minPartitions makes tasks; what is no such number is refused
            consumer/test_stream_planner::test_a_micro_batch_is_split_as_the_options_say
            interop/test_stream_parity::test_a_stream_is_refused[no-number]
            options/test_read::test_refusal_names_the_option_what_came_and_what_is_accepted
    M32     checkpoints of Spark 2.4, which knew no headers
            not here: this source has none that old
    M33-M36  metrics of the lag
            not here: Spark asks a source in Python for none
    M37     a query is stopped as soon as it is started
            interop/test_stream_parity::test_a_query_can_be_stopped_as_soon_as_it_is_started
    M38-M67  each choice of topics with each kind of start, with failOnDataLoss and without
            consumer/test_stream_starts::test_a_query_reads_each_record_from_its_start_on_once
            interop/test_stream_parity::test_a_stream_starts_where_the_options_say_and_reads_later_records
    M68     offsets by topic
            consumer/test_stream_starts::test_a_query_starts_each_topic_where_its_word_says_and_new_topics_of_a_pattern_at_their_start
    M69-M72  no record that late at the start: an error, or the end by the strategy
            interop/test_stream_parity::test_a_start_later_than_all_records_fails_the_query
            interop/test_stream_parity::test_a_stream_starts_where_the_options_say_and_reads_later_records[no-later-one-is-the-end]
            consumer/test_stream_planner::test_a_time_later_than_all_records_is_an_error_or_the_end_of_the_partition
    M73     AvailableNow repeats the batch that failed, also where partitions were added
            consumer/test_stream_planner::test_available_now_repeats_a_batch_of_an_earlier_run_unchanged
    M74-M75  options that do not go
            interop/test_stream_parity::test_a_stream_is_refused
            options/test_read::test_exactly_one_selection_is_needed
            options/test_read::test_a_stream_has_no_end
    M76     values in any case, names in their own
            options/test_read::test_read_option_is_parsed
            consumer/test_stream_planner::test_a_query_starts_where_the_options_say
    M77     the columns
            spark/test_stream_reader::test_rows_have_the_columns_of_sparks_kafka_source
    M78     topics come, grow and go by chance
            spark/test_stream_reader::test_a_query_reads_everything_once_while_topics_are_created_grown_and_deleted
            consumer/test_stream_planner::test_a_query_that_accepts_loss_survives_every_change_and_reads_nothing_twice

KafkaDontFailOnDataLossSuite
    D1-D3   a stream reads nothing twice while records are deleted
            consumer/test_stream_reads::test_reading_while_records_are_deleted_gives_no_record_twice
            not here: continuous mode, which a source in Python cannot have
    D4-D5   nor does a batch
            consumer/test_batch_reads::test_records_deleted_during_a_read_are_data_loss_or_skipped
    D6      topics are deleted and created by chance
            spark/test_stream_reader::test_a_query_reads_everything_once_while_topics_are_created_grown_and_deleted[loss-is-accepted]

KafkaSinkSuite
    K1-K3   a stream's topic is the option's before the column's
            interop/test_stream_parity::test_a_sink_writes_each_micro_batch
    K4-K5   columns that are missing or of another type
            interop/test_batch_parity::test_save_refuses_columns
    K6      a topic that does not exist fails the query
            not here: a write makes its topic
            spark/test_round_trip::test_writing_no_rows_creates_the_topic_and_nothing_else
    K7      serializers are refused
            interop/test_batch_parity::test_save_refuses_options
    K8      the sink's progress counts the rows, with output mode update
            not here: Spark takes neither from a sink in Python
    K9      rows that fill a small buffer many times
            spark/test_round_trip::test_all_columns_and_their_order_come_back_whatever_the_layout[least-memory-no-flush]
    K10     headers of a batch
            interop/test_batch_parity::test_a_row_becomes_a_record
    K11     the column partition goes before a partitioner, and that before the default one
            interop/test_batch_parity::test_keys_go_to_the_same_partitions_and_the_column_wins
            producer/test_partitioner::test_a_custom_partitioner_is_asked_once_a_topic_for_rows_that_leave_it_open
            spark/test_producer_options::test_a_users_own_partitioner_chooses_partitions
    K12     a null topic
            interop/test_batch_parity::test_a_null_topic_fails_the_job
    K13     save modes
            interop/test_batch_parity::test_save_refuses_modes
            spark/test_bad_input::test_spark_refuses_other_save_modes_for_sources_in_python
            not here: overwrite is refused there and has a meaning here
    K14     any expression as the value
            interop/test_batch_parity::test_any_expression_of_the_plan_can_be_the_value

KafkaOffsetRangeCalculatorSuite
    C1-C2   without minPartitions ranges stay whole, empty ones are dropped
            consumer/test_splits::test_without_options_ranges_stay_whole_and_empty_ones_are_dropped
            not here: where an executor is preferred, which a source in Python cannot say
    C3-C4   as many ranges as are asked for
            consumer/test_splits::test_as_many_ranges_as_min_partitions_stay_whole
    C5      one range is divided evenly
            consumer/test_splits::test_one_range_is_split_evenly_and_the_last_piece_gets_the_rest
    C6      a small range stays whole
            consumer/test_splits::test_small_ranges_stay_whole_and_leave_their_share_to_large_ones
    C7      an empty range takes no share
            consumer/test_splits::test_empty_ranges_take_no_share
    C8      a small range leaves its share
            consumer/test_splits::test_small_ranges_stay_whole_and_leave_their_share_to_large_ones
    C9      more ranges than are asked for
            consumer/test_splits::test_as_many_ranges_as_min_partitions_stay_whole
    C10     the rest goes last
            consumer/test_splits::test_one_range_is_split_evenly_and_the_last_piece_gets_the_rest
    C11     an empty range beside a small one
            consumer/test_splits::test_empty_ranges_take_no_share
    C12     shares that round up
            consumer/test_splits::test_shares_rounded_up_make_more_pieces_than_requested_and_drop_nothing
    C13-C14  shares by size
            consumer/test_splits::test_shares_are_proportional_to_size
    C15     two smallest ranges beside a large one
            consumer/test_splits::test_small_ranges_stay_whole_and_leave_their_share_to_large_ones
    C16-C17  maxRecordsPerPartition
            consumer/test_splits::test_max_records_splits_larger_ranges_only
    C18-C19  both
            consumer/test_splits::test_min_partitions_splits_the_pieces_that_max_records_leaves

KafkaOffsetReaderSuite
    O1      the isolation level by default
            cluster/test_isolation::test_readers_get_what_the_model_gives
            not here: it is read_uncommitted there and read_committed here
    O2-O3   the isolation levels
            options/test_read::test_read_option_is_parsed[isolation]
            cluster/test_isolation::test_kafkas_prefix_is_accepted
    O4      any other
            options/test_read::test_refusal_names_the_option_what_came_and_what_is_accepted[isolation]
    O5      numbers are divided
            consumer/test_splits::test_ranges_of_offsets_are_split_as_they_are
    O6      the outer bounds stay earliest and latest
            consumer/test_splits::test_outer_bounds_stay_late_bound
            interop/test_batch_parity::test_ranges_from_earliest_to_latest_are_split_too_and_stay_unresolved
    O7      offsets of some of the partitions
            interop/test_batch_parity::test_an_action_is_refused[offsets-of-some]
    O8      several partitions
            consumer/test_splits::test_outer_bounds_stay_late_bound
    O9      all of it as numbers
            interop/test_batch_parity::test_ranges_are_split_at_the_same_offsets
    O10     times of some of the partitions, or of more
            interop/test_batch_parity::test_an_action_is_refused[times-of-some]
            consumer/test_planning::test_json_must_name_exactly_the_partitions_that_are_read

JsonUtilsSuite
    J1      partitions
            options/test_read::test_read_option_is_parsed[assign]
    J2      offsets
            options/test_read::test_read_option_is_parsed[starting offsets]
    J3-J6   offsets by topic, beside those by partition, but not for one topic both
            options/test_read::test_read_option_is_parsed[a start of a topic]
            options/test_read::test_stream_option_is_parsed[by topic]
            options/test_read::test_an_offset_given_twice_for_one_partition_is_refused[for its topic as a whole too]
            options/test_read::test_the_error_for_a_topic_as_a_whole_names_it_and_what_it_has

KafkaSourceOffsetSuite, OffsetSuite
    F1      offsets are compared
            not here: Spark compares those of a source in Python as texts
            consumer/test_stream_planner_offsets::test_equal_offsets_have_equal_texts
    F2      an offset comes back from its JSON
            consumer/test_stream_planner_offsets::test_an_offset_round_trips_through_json
    F3      the log of offsets
            not here: Spark keeps it
    F4      offsets that Spark's connector wrote
            consumer/test_stream_planner_offsets::test_an_offset_of_sparks_connector_is_accepted
    F5-F6   offsets are compared by the partitions that both have
            not here: Spark compares those of a source in Python as texts

ConsumerStrategySuite
    A1      assigned partitions
            consumer/test_planning::test_assign_reads_the_partitions_that_exist_and_leaves_out_the_others
    A2      those that do not exist are left out
            interop/test_batch_parity::test_assigned_partitions_that_do_not_exist_are_left_out
    A3      all partitions of the topics that are named
            interop/test_batch_parity::test_several_topics_are_read_by_name
    A4      all partitions of those in whose name a pattern is found
            interop/test_batch_parity::test_a_pattern_is_searched_for_in_the_names

Others
    L1-L3   offsets by topic are spread over the partitions; the topic must be one of those that are read
            consumer/test_planning::test_a_word_for_a_topic_stands_for_each_of_its_partitions_that_is_read
            consumer/test_planning::test_a_word_for_a_topic_that_is_not_read_is_refused
    E1      errors carry an SQL state
            not here: Spark wraps an error of a source in Python in one of its own
    G1      an error of data loss keeps its cause
            consumer/test_reading::test_data_loss_is_an_error_that_names_lost_and_available_offsets
    G2      a task that is repeated gets another consumer
            not here: nothing is kept between tasks
    G3-G4   tasks that read one partition at once, also at different offsets
            consumer/test_batch_reads::test_pieces_of_a_plan_may_be_read_concurrently_and_twice
    P1-P3   keys in any case
            options/test_read::test_read_option_is_parsed[key in capitals]
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).parent
COUNTS = {
    "R": 23, "M": 78, "D": 6, "K": 14, "C": 19, "O": 10, "J": 6, "F": 6, "A": 4,
    "L": 3, "E": 1, "G": 4, "P": 3,
}  # fmt: skip

_ENTRY = re.compile(r" {4}([A-Z])(\d+)(?:-\1(\d+))? +\S.*")
_TEST = re.compile(r" {12}([\w/]+)::(\w+)(?:\[(.+)\])?")
_REASON = re.compile(r" {12}not here: \S.*")


class Behaviour(NamedTuple):
    numbers: list[str]
    tests: list[tuple[str, str, str | None]]  # file, function, case
    reasons: int


def behaviours() -> list[Behaviour]:
    """The table."""
    found: list[Behaviour] = []
    for line in (__doc__ or "").splitlines():
        if entry := _ENTRY.fullmatch(line):
            letter, first, last = entry.groups()
            numbers = range(int(first), int(last or first) + 1)
            found.append(Behaviour([f"{letter}{n}" for n in numbers], [], 0))
        elif test := _TEST.fullmatch(line):
            found[-1].tests.append((test[1], test[2], test[3]))
        elif _REASON.fullmatch(line):
            found[-1] = found[-1]._replace(reasons=found[-1].reasons + 1)
        else:
            assert not line.startswith(" "), line
    return found


@functools.cache
def source(file: str) -> str:
    return (TESTS / f"{file}.py").read_text()


def test_every_behaviour_is_in_the_table_once() -> None:
    numbers = [number for one in behaviours() for number in one.numbers]

    assert numbers == [f"{letter}{n + 1}" for letter, many in COUNTS.items() for n in range(many)]


@pytest.mark.parametrize("behaviour", behaviours(), ids=lambda one: one.numbers[0])
def test_a_behaviour_has_a_test_that_exists_or_a_reason(behaviour: Behaviour) -> None:
    assert behaviour.tests or behaviour.reasons
    for file, name, case in behaviour.tests:
        assert f"\ndef {name}(" in source(file), f"{file} has no {name}"
        if case is not None:
            given = rf'id="{case}"|ids=\[[^\]]*"{case}"'
            assert re.search(given, source(file)), f"{file} has no case {case!r}"
