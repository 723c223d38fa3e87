"""The requests of Kafka's protocol and their answers: names, numbers, versions and fields.

    NAME = number, first-last flexible first+
        request
            field type, field type versions =default, field type? versions
            field []Structure
                field type
        response
            ...

These are the versions that are understood; a server offers those that it has handlers for. A field is in
all versions unless its own are given: `3+`, `0-7`. One with `?` can be null, `?2+` from version 2 on. One
with `@` has that tag, and is left out if it has its default, which is 0, empty or false unless it is given.
`codec` makes classes of the lines, and reads and writes them. A new request is one entry here: `python -m
tests.support.kafka_schemas NAME FIRST-LAST` prints it.

Clients infer a broker's features from its api keys: librdkafka uses lz4 only if FindCoordinator is offered,
and needs either all keys of groups or none. Produce is offered from version 0 on, because librdkafka otherwise
stops compressing, but accepted only from version 3 on. Topic ids start with version 13 of Produce and Fetch.
Requests of transactions are for clients only, and stop before the versions in which each transaction has an
epoch of its own (KIP-890), as Produce does if it is of a transaction: version 11,
`PRODUCE_MAX_VERSION_OF_TRANSACTIONS`. Version 0 of SaslHandshake goes with tokens outside of the
protocol, so our client needs SaslAuthenticate too.
ConsumerGroupHeartbeat and SaslHandshake are only refused: without the first librdkafka waits for
ever, and without the second it says by itself that there is no SASL, so that no log has it. The
assignment in its response is null, a structure of which -1 is all there is.

Source: Kafka clients/src/main/resources/common/message.
"""

from __future__ import annotations

from enum import IntEnum


class ApiKey(IntEnum):
    """A kind of request; the names are Kafka's."""

    text: str  # its versions, and the fields of the request and of the response

    def __new__(cls, key: int, text: str = "") -> ApiKey:
        """Make a member from its entry."""
        member = int.__new__(cls, key)
        member._value_ = key
        member.text = text
        return member

    # fmt: off
    PRODUCE = 0, """0-12 flexible 9+
        request
            transactional_id string? 3+ =null, acks int16, timeout_ms int32
            topic_data []TopicProduceData
                name string
                partition_data []PartitionProduceData
                    index int32, records records?
        response
            responses []TopicProduceResponse
                name string
                partition_responses []PartitionProduceResponse
                    index int32, error_code int16, base_offset int64
                    log_append_time_ms int64 2+ =-1, log_start_offset int64 5+ =-1
                    record_errors []BatchIndexAndErrorMessage 8+
                        batch_index int32, batch_index_error_message string? =null
                    error_message string? 8+ =null
                    current_leader LeaderIdAndEpoch 10+ @0
                        leader_id int32 =-1, leader_epoch int32 =-1
            throttle_time_ms int32 1+
            node_endpoints []NodeEndpoint 10+ @0
                node_id int32, host string, port int32, rack string? =null"""
    FETCH = 1, """4-12 flexible 12+
        request
            cluster_id string? 12+ @0 =null, replica_id int32 =-1, max_wait_ms int32
            min_bytes int32, max_bytes int32 =0x7fffffff, isolation_level int8, session_id int32 7+
            session_epoch int32 7+ =-1
            topics []FetchTopic
                topic string
                partitions []FetchPartition
                    partition int32, current_leader_epoch int32 9+ =-1, fetch_offset int64
                    last_fetched_epoch int32 12+ =-1, log_start_offset int64 5+ =-1
                    partition_max_bytes int32
            forgotten_topics_data []ForgottenTopic 7+
                topic string, partitions []int32
            rack_id string 11+
        response
            throttle_time_ms int32, error_code int16 7+, session_id int32 7+
            responses []FetchableTopicResponse
                topic string
                partitions []PartitionData
                    partition_index int32, error_code int16, high_watermark int64
                    last_stable_offset int64 =-1, log_start_offset int64 5+ =-1
                    diverging_epoch EpochEndOffset 12+ @0
                        epoch int32 =-1, end_offset int64 =-1
                    current_leader LeaderIdAndEpoch 12+ @1
                        leader_id int32 =-1, leader_epoch int32 =-1
                    snapshot_id SnapshotId 12+ @2
                        end_offset int64 =-1, epoch int32 =-1
                    aborted_transactions []AbortedTransaction?
                        producer_id int64, first_offset int64
                    preferred_read_replica int32 11+ =-1, records records?"""
    LIST_OFFSETS = 2, """1-9 flexible 6+
        request
            replica_id int32, isolation_level int8 2+
            topics []ListOffsetsTopic
                name string
                partitions []ListOffsetsPartition
                    partition_index int32, current_leader_epoch int32 4+ =-1, timestamp int64
        response
            throttle_time_ms int32 2+
            topics []ListOffsetsTopicResponse
                name string
                partitions []ListOffsetsPartitionResponse
                    partition_index int32, error_code int16, timestamp int64 =-1, offset int64 =-1
                    leader_epoch int32 4+ =-1"""
    METADATA = 3, """0-13 flexible 9+
        request
            topics []MetadataRequestTopic?1+
                topic_id uuid 10+, name string?10+
            allow_auto_topic_creation bool 4+ =true
            include_cluster_authorized_operations bool 8-10
            include_topic_authorized_operations bool 8+
        response
            throttle_time_ms int32 3+
            brokers []MetadataResponseBroker
                node_id int32, host string, port int32, rack string? 1+ =null
            cluster_id string? 2+ =null, controller_id int32 1+ =-1
            topics []MetadataResponseTopic
                error_code int16, name string?12+, topic_id uuid 10+, is_internal bool 1+
                partitions []MetadataResponsePartition
                    error_code int16, partition_index int32, leader_id int32
                    leader_epoch int32 7+ =-1, replica_nodes []int32, isr_nodes []int32
                    offline_replicas []int32 5+
                topic_authorized_operations int32 8+ =-2147483648
            cluster_authorized_operations int32 8-10 =-2147483648, error_code int16 13+"""
    OFFSET_COMMIT = 8, """2-9 flexible 8+
        request
            group_id string, generation_id_or_member_epoch int32 =-1, member_id string
            group_instance_id string? 7+ =null, retention_time_ms int64 2-4 =-1
            topics []OffsetCommitRequestTopic
                name string
                partitions []OffsetCommitRequestPartition
                    partition_index int32, committed_offset int64
                    committed_leader_epoch int32 6+ =-1, committed_metadata string?
        response
            throttle_time_ms int32 3+
            topics []OffsetCommitResponseTopic
                name string
                partitions []OffsetCommitResponsePartition
                    partition_index int32, error_code int16"""
    OFFSET_FETCH = 9, """1-9 flexible 6+
        request
            group_id string 1-7
            topics []OffsetFetchRequestTopic?2+ 1-7
                name string, partition_indexes []int32
            groups []OffsetFetchRequestGroup 8+
                group_id string, member_id string? 9+ =null, member_epoch int32 9+ =-1
                topics []OffsetFetchRequestTopics?
                    name string, partition_indexes []int32
            require_stable bool 7+
        response
            throttle_time_ms int32 3+
            topics []OffsetFetchResponseTopic 1-7
                name string
                partitions []OffsetFetchResponsePartition
                    partition_index int32, committed_offset int64
                    committed_leader_epoch int32 5+ =-1, metadata string?, error_code int16
            error_code int16 2-7
            groups []OffsetFetchResponseGroup 8+
                group_id string
                topics []OffsetFetchResponseTopics
                    name string
                    partitions []OffsetFetchResponsePartitions
                        partition_index int32, committed_offset int64
                        committed_leader_epoch int32 =-1, metadata string?, error_code int16
                error_code int16"""
    FIND_COORDINATOR = 10, """0-4 flexible 3+
        request
            key string 0-3, key_type int8 1+, coordinator_keys []string 4+
        response
            throttle_time_ms int32 1+, error_code int16 0-3, error_message string? 1-3
            node_id int32 0-3, host string 0-3, port int32 0-3
            coordinators []Coordinator 4+
                key string, node_id int32, host string, port int32, error_code int16
                error_message string?"""
    JOIN_GROUP = 11, """0-9 flexible 6+
        request
            group_id string, session_timeout_ms int32, rebalance_timeout_ms int32 1+ =-1
            member_id string, group_instance_id string? 5+ =null, protocol_type string
            protocols []JoinGroupRequestProtocol
                name string, metadata bytes
            reason string? 8+ =null
        response
            throttle_time_ms int32 2+, error_code int16, generation_id int32 =-1
            protocol_type string? 7+ =null, protocol_name string?7+, leader string
            skip_assignment bool 9+, member_id string
            members []JoinGroupResponseMember
                member_id string, group_instance_id string? 5+ =null, metadata bytes"""
    HEARTBEAT = 12, """0-4 flexible 4+
        request
            group_id string, generation_id int32, member_id string
            group_instance_id string? 3+ =null
        response
            throttle_time_ms int32 1+, error_code int16"""
    LEAVE_GROUP = 13, """0-5 flexible 4+
        request
            group_id string, member_id string 0-2
            members []MemberIdentity 3+
                member_id string, group_instance_id string? =null, reason string? 5+ =null
        response
            throttle_time_ms int32 1+, error_code int16
            members []MemberResponse 3+
                member_id string, group_instance_id string?, error_code int16"""
    SYNC_GROUP = 14, """0-5 flexible 4+
        request
            group_id string, generation_id int32, member_id string
            group_instance_id string? 3+ =null, protocol_type string? 5+ =null
            protocol_name string? 5+ =null
            assignments []SyncGroupRequestAssignment
                member_id string, assignment bytes
        response
            throttle_time_ms int32 1+, error_code int16, protocol_type string? 5+ =null
            protocol_name string? 5+ =null, assignment bytes"""
    DESCRIBE_GROUPS = 15, """0-5 flexible 5+
        request
            groups []string, include_authorized_operations bool 3+
        response
            throttle_time_ms int32 1+
            groups []DescribedGroup
                error_code int16, group_id string, group_state string, protocol_type string
                protocol_data string
                members []DescribedGroupMember
                    member_id string, group_instance_id string? 4+ =null, client_id string
                    client_host string, member_metadata bytes, member_assignment bytes
                authorized_operations int32 3+ =-2147483648"""
    LIST_GROUPS = 16, """0-4 flexible 3+
        request
            states_filter []string 4+
        response
            throttle_time_ms int32 1+, error_code int16
            groups []ListedGroup
                group_id string, protocol_type string, group_state string 4+"""
    SASL_HANDSHAKE = 17, """0-1
        request
            mechanism string
        response
            error_code int16, mechanisms []string"""
    API_VERSIONS = 18, """0-4 flexible 3+
        request
            client_software_name string 3+, client_software_version string 3+
        response
            error_code int16
            api_keys []ApiVersion
                api_key int16, min_version int16, max_version int16
            throttle_time_ms int32 1+
            supported_features []SupportedFeatureKey 3+ @0
                name string, min_version int16, max_version int16
            finalized_features_epoch int64 3+ @1 =-1
            finalized_features []FinalizedFeatureKey 3+ @2
                name string, max_version_level int16, min_version_level int16
            zk_migration_ready bool 3+ @3"""
    CREATE_TOPICS = 19, """2-7 flexible 5+
        request
            topics []CreatableTopic
                name string, num_partitions int32, replication_factor int16
                assignments []CreatableReplicaAssignment
                    partition_index int32, broker_ids []int32
                configs []CreatableTopicConfig
                    name string, value string?
            timeout_ms int32 =60000, validate_only bool
        response
            throttle_time_ms int32
            topics []CreatableTopicResult
                name string, topic_id uuid 7+, error_code int16, error_message string?
                topic_config_error_code int16 5+ @0, num_partitions int32 5+ =-1
                replication_factor int16 5+ =-1
                configs []CreatableTopicConfigs? 5+
                    name string, value string?, read_only bool, config_source int8 =-1
                    is_sensitive bool"""
    DELETE_TOPICS = 20, """1-6 flexible 4+
        request
            topics []DeleteTopicState 6+
                name string? =null, topic_id uuid
            topic_names []string 1-5, timeout_ms int32
        response
            throttle_time_ms int32
            responses []DeletableTopicResult
                name string?6+, topic_id uuid 6+, error_code int16, error_message string? 5+ =null"""
    DELETE_RECORDS = 21, """0-2 flexible 2+
        request
            topics []DeleteRecordsTopic
                name string
                partitions []DeleteRecordsPartition
                    partition_index int32, offset int64
            timeout_ms int32
        response
            throttle_time_ms int32
            topics []DeleteRecordsTopicResult
                name string
                partitions []DeleteRecordsPartitionResult
                    partition_index int32, low_watermark int64, error_code int16"""
    INIT_PRODUCER_ID = 22, """0-5 flexible 2+
        request
            transactional_id string?, transaction_timeout_ms int32, producer_id int64 3+ =-1
            producer_epoch int16 3+ =-1
        response
            throttle_time_ms int32, error_code int16, producer_id int64 =-1, producer_epoch int16"""
    OFFSET_FOR_LEADER_EPOCH = 23, """2-4 flexible 4+
        request
            replica_id int32 3+ =-2
            topics []OffsetForLeaderTopic
                topic string
                partitions []OffsetForLeaderPartition
                    partition int32, current_leader_epoch int32 =-1, leader_epoch int32
        response
            throttle_time_ms int32
            topics []OffsetForLeaderTopicResult
                topic string
                partitions []EpochEndOffset
                    error_code int16, partition int32, leader_epoch int32 =-1, end_offset int64 =-1"""
    ADD_PARTITIONS_TO_TXN = 24, """0-3 flexible 3+
        request
            v3_and_below_transactional_id string, v3_and_below_producer_id int64
            v3_and_below_producer_epoch int16
            v3_and_below_topics []AddPartitionsToTxnTopic
                name string, partitions []int32
        response
            throttle_time_ms int32
            results_by_topic_v3_and_below []AddPartitionsToTxnTopicResult
                name string
                results_by_partition []AddPartitionsToTxnPartitionResult
                    partition_index int32, partition_error_code int16"""
    ADD_OFFSETS_TO_TXN = 25, """0-4 flexible 3+
        request
            transactional_id string, producer_id int64, producer_epoch int16, group_id string
        response
            throttle_time_ms int32, error_code int16"""
    END_TXN = 26, """0-4 flexible 3+
        request
            transactional_id string, producer_id int64, producer_epoch int16, committed bool
        response
            throttle_time_ms int32, error_code int16"""
    TXN_OFFSET_COMMIT = 28, """0-4 flexible 3+
        request
            transactional_id string, group_id string, producer_id int64, producer_epoch int16
            generation_id int32 3+ =-1, member_id string 3+, group_instance_id string? 3+ =null
            topics []TxnOffsetCommitRequestTopic
                name string
                partitions []TxnOffsetCommitRequestPartition
                    partition_index int32, committed_offset int64
                    committed_leader_epoch int32 2+ =-1, committed_metadata string?
        response
            throttle_time_ms int32
            topics []TxnOffsetCommitResponseTopic
                name string
                partitions []TxnOffsetCommitResponsePartition
                    partition_index int32, error_code int16"""
    DESCRIBE_CONFIGS = 32, """1-4 flexible 4+
        request
            resources []DescribeConfigsResource
                resource_type int8, resource_name string, configuration_keys []string?
            include_synonyms bool, include_documentation bool 3+
        response
            throttle_time_ms int32
            results []DescribeConfigsResult
                error_code int16, error_message string?, resource_type int8, resource_name string
                configs []DescribeConfigsResourceResult
                    name string, value string?, read_only bool, config_source int8 =-1
                    is_sensitive bool
                    synonyms []DescribeConfigsSynonym
                        name string, value string?, source int8
                    config_type int8 3+, documentation string? 3+"""
    ALTER_CONFIGS = 33, """0-2 flexible 2+
        request
            resources []AlterConfigsResource
                resource_type int8, resource_name string
                configs []AlterableConfig
                    name string, value string?
            validate_only bool
        response
            throttle_time_ms int32
            responses []AlterConfigsResourceResponse
                error_code int16, error_message string?, resource_type int8, resource_name string"""
    DESCRIBE_LOG_DIRS = 35, """1-4 flexible 2+
        request
            topics []DescribableLogDirTopic?
                topic string, partitions []int32
        response
            throttle_time_ms int32, error_code int16 3+
            results []DescribeLogDirsResult
                error_code int16, log_dir string
                topics []DescribeLogDirsTopic
                    name string
                    partitions []DescribeLogDirsPartition
                        partition_index int32, partition_size int64, offset_lag int64
                        is_future_key bool
                total_bytes int64 4+ =-1, usable_bytes int64 4+ =-1"""
    SASL_AUTHENTICATE = 36, """0-2 flexible 2+
        request
            auth_bytes bytes
        response
            error_code int16, error_message string?, auth_bytes bytes, session_lifetime_ms int64 1+"""
    CREATE_PARTITIONS = 37, """0-3 flexible 2+
        request
            topics []CreatePartitionsTopic
                name string, count int32
                assignments []CreatePartitionsAssignment?
                    broker_ids []int32
            timeout_ms int32, validate_only bool
        response
            throttle_time_ms int32
            results []CreatePartitionsTopicResult
                name string, error_code int16, error_message string? =null"""
    DELETE_GROUPS = 42, """0-2 flexible 2+
        request
            groups_names []string
        response
            throttle_time_ms int32
            results []DeletableGroupResult
                group_id string, error_code int16"""
    INCREMENTAL_ALTER_CONFIGS = 44, """0-1 flexible 1+
        request
            resources []AlterConfigsResource
                resource_type int8, resource_name string
                configs []AlterableConfig
                    name string, config_operation int8, value string?
            validate_only bool
        response
            throttle_time_ms int32
            responses []AlterConfigsResourceResponse
                error_code int16, error_message string?, resource_type int8, resource_name string"""
    OFFSET_DELETE = 47, """0-0
        request
            group_id string
            topics []OffsetDeleteRequestTopic
                name string
                partitions []OffsetDeleteRequestPartition
                    partition_index int32
        response
            error_code int16, throttle_time_ms int32
            topics []OffsetDeleteResponseTopic
                name string
                partitions []OffsetDeleteResponsePartition
                    partition_index int32, error_code int16"""
    DESCRIBE_CLUSTER = 60, """0-2 flexible 0+
        request
            include_cluster_authorized_operations bool, endpoint_type int8 1+ =1
            include_fenced_brokers bool 2+
        response
            throttle_time_ms int32, error_code int16, error_message string? =null
            endpoint_type int8 1+ =1, cluster_id string, controller_id int32 =-1
            brokers []DescribeClusterBroker
                broker_id int32, host string, port int32, rack string? =null, is_fenced bool 2+
            cluster_authorized_operations int32 =-2147483648"""
    DESCRIBE_PRODUCERS = 61, """0-0 flexible 0+
        request
            topics []TopicRequest
                name string, partition_indexes []int32
        response
            throttle_time_ms int32
            topics []TopicResponse
                name string
                partitions []PartitionResponse
                    partition_index int32, error_code int16, error_message string? =null
                    active_producers []ProducerState
                        producer_id int64, producer_epoch int32, last_sequence int32 =-1
                        last_timestamp int64 =-1, coordinator_epoch int32
                        current_txn_start_offset int64 =-1"""
    DESCRIBE_TRANSACTIONS = 65, """0-0 flexible 0+
        request
            transactional_ids []string
        response
            throttle_time_ms int32
            transaction_states []TransactionState
                error_code int16, transactional_id string, transaction_state string
                transaction_timeout_ms int32, transaction_start_time_ms int64, producer_id int64
                producer_epoch int16
                topics []TopicData
                    topic string, partitions []int32"""
    LIST_TRANSACTIONS = 66, """0-1 flexible 0+
        request
            state_filters []string, producer_id_filters []int64, duration_filter int64 1+ =-1
        response
            throttle_time_ms int32, error_code int16, unknown_state_filters []string
            transaction_states []TransactionState
                transactional_id string, producer_id int64, transaction_state string"""
    CONSUMER_GROUP_HEARTBEAT = 68, """0-1 flexible 0+
        request
            group_id string, member_id string, member_epoch int32, instance_id string? =null
            rack_id string? =null, rebalance_timeout_ms int32 =-1
            subscribed_topic_names []string? =null, subscribed_topic_regex string? 1+ =null
            server_assignor string? =null
            topic_partitions []TopicPartitions? =null
                topic_id uuid, partitions []int32
        response
            throttle_time_ms int32, error_code int16, error_message string? =null
            member_id string? =null, member_epoch int32, heartbeat_interval_ms int32
            assignment int8 =-1"""
    # fmt: on
